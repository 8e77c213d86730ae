# A tool chain that compiles for aarch64 (Grace, Graviton, Raspberry Pi) on another machine.
#
#   cmake -S . -B build-aarch64 -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake \
#         -DTL_SYSROOT=DIR         libraries and headers of arm64, as .ci/aarch64 fetches them
#
# The compiler brings its own C library; DIR adds what cmake/libraries.cmake looks for.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(TL_SYSROOT "" CACHE PATH "where arm64 packages were unpacked")
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES TL_SYSROOT)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH ${TL_SYSROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_C_STANDARD_INCLUDE_DIRECTORIES ${TL_SYSROOT}/usr/include/aarch64-linux-gnu)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${TL_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR}
    ${TL_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${TL_SYSROOT}/usr/share/pkgconfig)
# The build runs one program of its own (cmake/record.c), and what was built is run the same way.
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64 -L ${TL_SYSROOT})
