# Cubins of every kernels/<family>/*.cu, put into the program with .incbin, and the table of them.
#
# Device code only: machine code for the named architectures, no PTX, so that the driver never
# compiles. Contraction is off and no approximate unit is used but the exponential, which the code
# names itself: ./tl manifest looks for others in the PTX that is kept beside the cubins, in ptx/.
# Without cubins the table is empty and the program runs on the host.
#
# The program also holds kernels/manifest.yaml, the verified machine code, and manifest.yaml of the
# build's folder, the same table of the cubins that were made just now (runtime/manifest.h).
set(TL_CUDA_ARCHS "90a" CACHE STRING "architectures that cubins are built for, such as 90a")
set(TL_CUDA "auto" CACHE STRING "on, off, or auto: on where nvcc and a driver are found")
set_property(CACHE TL_CUDA PROPERTY STRINGS auto on off)
find_program(TL_NVCC nvcc HINTS /usr/local/cuda/bin)
set(with_cuda OFF)
if(TL_CUDA STREQUAL "on")
  if(NOT TL_NVCC)
    message(FATAL_ERROR "TL_CUDA is on and there is no nvcc; install the CUDA toolkit 13.0")
  endif()
  set(with_cuda ON)
elseif(TL_CUDA STREQUAL "auto" AND TL_NVCC)
  execute_process(COMMAND ldconfig -p OUTPUT_VARIABLE known_libraries ERROR_QUIET)
  if(known_libraries MATCHES "libcuda\\.so\\.1")
    set(with_cuda ON)
  endif()
elseif(NOT TL_CUDA MATCHES "^(auto|off)$")
  message(FATAL_ERROR "TL_CUDA is ${TL_CUDA}; it can be on, off or auto")
endif()

set(images_c ${CMAKE_BINARY_DIR}/cuda_images.c)
set(images_text "/* Written by the build. */\n#include \"runtime/cuda_images.h\"\n\n")
string(APPEND images_text "#include <stddef.h>\n\n")
set(images_rows "")
set(image_count 0)
set(TL_CUBINS "")
if(with_cuda)
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/kernels/*/*.cu)
  foreach(source ${cuda_sources})
    get_filename_component(name ${source} NAME_WE)
    foreach(arch ${TL_CUDA_ARCHS})
      if(name MATCHES "_hopper" AND NOT arch STREQUAL "90a") # instructions that only sm_90a has
        continue()
      endif()
      string(REGEX REPLACE "[a-z]" "" number ${arch})
      set(cubin ${CMAKE_BINARY_DIR}/cubins/${name}.sm_${arch}.cubin)
      add_custom_command(
        OUTPUT ${cubin}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/ptx/sm_${arch}
        COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/cubins
        COMMAND ${TL_NVCC} -cubin -std=c++17 --fmad=false -Xptxas --warn-on-spills
                -I ${CMAKE_SOURCE_DIR} --keep --keep-dir ${CMAKE_BINARY_DIR}/ptx/sm_${arch}
                -gencode arch=compute_${arch},code=sm_${arch} -MD -MF ${cubin}.d
                -o ${cubin} ${source}
        COMMAND sh -c "rm -f ${CMAKE_BINARY_DIR}/ptx/sm_${arch}/${name}.*[!x]"
        DEPENDS ${source}
        DEPFILE ${cubin}.d
        COMMENT "cubin ${name} for sm_${arch}"
        VERBATIM)
      list(APPEND TL_CUBINS ${cubin})
      set(label tl_cubin_${name}_${arch})
      string(APPEND images_text
        "__asm__(\".section .rodata\\n.balign 64\\n.global ${label}\\n${label}:\\n\"\n"
        "        \".incbin \\\"${cubin}\\\"\\n\"\n"
        "        \".global ${label}_end\\n${label}_end:\\n.byte 0\\n.text\\n\");\n"
        "extern const unsigned char ${label}[], ${label}_end[];\n")
      string(APPEND images_rows "    {\"${name}\", ${number}, ${label}, ${label}_end},\n")
      math(EXPR image_count "${image_count} + 1")
    endforeach()
  endforeach()
  string(REPLACE ";" ", sm_" archs "sm_${TL_CUDA_ARCHS}")
else()
  set(archs "no GPU")
endif()
set(manifest ${CMAKE_SOURCE_DIR}/kernels/manifest.yaml)
set(record ${CMAKE_BINARY_DIR}/manifest.yaml)
foreach(pair "verified:${manifest}" "own:${record}")
  string(REGEX MATCH "^([a-z]+):(.*)$" matched ${pair})
  string(APPEND images_text
    "__asm__(\".section .rodata\\n.global tl_manifest_${CMAKE_MATCH_1}\\n\"\n"
    "        \"tl_manifest_${CMAKE_MATCH_1}:\\n.incbin \\\"${CMAKE_MATCH_2}\\\"\\n\"\n"
    "        \".byte 0\\n.text\\n\");\n")
endforeach()
string(APPEND images_text
  "\nconst tl_cuda_image tl_cuda_images[] = {\n${images_rows}    {NULL, 0, NULL, NULL},\n};\n"
  "const int32_t tl_cuda_image_count = ${image_count};\n"
  "const char *const tl_cuda_image_archs = \"${archs}\";\n")
file(GENERATE OUTPUT ${images_c} CONTENT "${images_text}")
set_source_files_properties(${images_c} PROPERTIES GENERATED TRUE
                            OBJECT_DEPENDS "${TL_CUBINS};${manifest};${record}")

# The program that writes the record: it takes what it shares with the loader from its sources.
add_executable(record ${CMAKE_SOURCE_DIR}/cmake/record.c ${CMAKE_SOURCE_DIR}/runtime/manifest.c
                      ${CMAKE_SOURCE_DIR}/runtime/cubin.c ${CMAKE_SOURCE_DIR}/runtime/status.c)
target_include_directories(record PRIVATE ${TL_INCLUDES} ${CMAKE_SOURCE_DIR})
target_link_libraries(record PRIVATE ${TL_MD_ARCHIVE})
add_custom_command(
  OUTPUT ${record}
  COMMAND record ${record} ${TL_CUBINS}
  DEPENDS record ${TL_CUBINS}
  COMMENT "record of the machine code"
  VERBATIM)
add_custom_target(machine_code DEPENDS ${record} ${TL_CUBINS})
