# The module build/lib/tidelock/mpi.so, where Open MPI's headers are found: ranks as processes.
#
# The program itself needs no MPI; it loads the module when mpirun or srun has started it.
set(TL_MPI "auto" CACHE STRING "on, off, or auto: on where Open MPI is found")
set_property(CACHE TL_MPI PROPERTY STRINGS auto on off)
if(NOT TL_MPI MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "TL_MPI is ${TL_MPI}; it can be on, off or auto")
endif()
if(NOT TL_MPI STREQUAL "off")
  pkg_check_modules(TL_MPI_PC QUIET ompi-c)
  if(TL_MPI_PC_FOUND)
    add_library(tidelock_mpi MODULE runtime/comm_mpi.c)
    target_include_directories(tidelock_mpi PRIVATE ${TL_MPI_PC_INCLUDE_DIRS})
    target_link_directories(tidelock_mpi PRIVATE ${TL_MPI_PC_LIBRARY_DIRS})
    target_link_libraries(tidelock_mpi PRIVATE ${TL_MPI_PC_LIBRARIES})
    set_target_properties(tidelock_mpi PROPERTIES PREFIX "" OUTPUT_NAME mpi
                          LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib/tidelock)
  elseif(TL_MPI STREQUAL "on")
    message(FATAL_ERROR "TL_MPI is on and there is no Open MPI; on Debian: "
                        "apt-get install libopenmpi-dev openmpi-bin")
  endif()
endif()
