# cmake --install build --prefix DIR: program, library for C, Lua half, manual page, completion.
#
#   bin/tidelock                      finds share/tidelock/lua by itself
#   lib/libtidelock.a                 with lib/pkgconfig/tidelock.pc: DIR may be moved
#   include/tidelock/runtime/*.h      #include "runtime/ranks.h"
#   share/tidelock/{lua,recipes}      share/man/man1/tidelock.1
#   share/bash-completion/completions/tidelock
include(GNUInstallDirs)

# What a program needs that links the library: all of it, since operators are found by weak names.
set(TL_PC_LIBRARIES "")
foreach(library ${TL_SHARED_LIBRARIES})
  if(library STREQUAL "Threads::Threads")
    string(APPEND TL_PC_LIBRARIES " -lpthread")
  elseif(library MATCHES "^-")
    string(APPEND TL_PC_LIBRARIES " ${library}")
  else()
    string(APPEND TL_PC_LIBRARIES " -l${library}")
  endif()
endforeach()
file(WRITE ${CMAKE_BINARY_DIR}/tidelock.pc
"prefix=\${pcfiledir}/../..
Name: tidelock
Description: Training with the same bits in any layout, from C
Version: ${PROJECT_VERSION}
Cflags: -I\${prefix}/include/tidelock
Libs: -L\${prefix}/lib -Wl,--whole-archive -ltidelock -Wl,--no-whole-archive${TL_PC_LIBRARIES}
")

install(TARGETS tidelock RUNTIME DESTINATION bin)
install(TARGETS tidelock_archive ARCHIVE DESTINATION lib)
install(FILES ${CMAKE_BINARY_DIR}/tidelock.pc DESTINATION lib/pkgconfig)
install(DIRECTORY runtime kernels DESTINATION include/tidelock
        FILES_MATCHING PATTERN "*.h" PATTERN "*.def" PATTERN "bind" EXCLUDE)
install(DIRECTORY lua/ DESTINATION share/tidelock/lua FILES_MATCHING PATTERN "*.lua")
install(DIRECTORY recipes DESTINATION share/tidelock)
install(FILES LICENSE DESTINATION share/doc/tidelock)
# Made by the installed program itself, from its table of commands.
set(TL_RUN ${CMAKE_CROSSCOMPILING_EMULATOR})
install(CODE "
  set(root \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
  file(MAKE_DIRECTORY \"\${root}/share/man/man1\" \"\${root}/share/bash-completion/completions\")
  foreach(pair \"--man;share/man/man1/tidelock.1\"
               \"--completion=bash;share/bash-completion/completions/tidelock\")
    list(GET pair 0 option)
    list(GET pair 1 file)
    execute_process(COMMAND ${TL_RUN} \"\${root}/bin/tidelock\" help \${option}
                    OUTPUT_FILE \"\${root}/\${file}\" RESULT_VARIABLE status)
    if(NOT status EQUAL 0)
      message(FATAL_ERROR \"\${root}/bin/tidelock does not run\")
    endif()
  endforeach()
")
