# Finds the libraries that are linked statically: Lua 5.4, libyaml, jansson, xxhash, libmd,
# PCRE2, utf8proc, libevent.
#
# Sets TL_LUA_INCLUDES, TL_LUA_LIBRARY, TL_INCLUDES, TL_LIBRARIES and TL_SHARED_LIBRARIES.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)

# tl_find_static(VARIABLE module archive header debian-package)
function(tl_find_static variable module archive header package)
  pkg_check_modules(${variable}_PC QUIET ${module})
  find_library(${variable}_ARCHIVE NAMES ${archive} HINTS ${${variable}_PC_LIBRARY_DIRS})
  find_path(${variable}_HEADERS NAMES ${header} HINTS ${${variable}_PC_INCLUDE_DIRS})
  if(NOT ${variable}_ARCHIVE OR NOT ${variable}_HEADERS)
    message(FATAL_ERROR "no ${archive} or ${header}; on Debian: apt-get install ${package}")
  endif()
  mark_as_advanced(${variable}_ARCHIVE ${variable}_HEADERS)
endfunction()

tl_find_static(TL_LUA lua5.4 liblua5.4.a lua.h liblua5.4-dev)
tl_find_static(TL_YAML yaml-0.1 libyaml.a yaml.h libyaml-dev)
tl_find_static(TL_JANSSON jansson libjansson.a jansson.h libjansson-dev)
tl_find_static(TL_XXHASH libxxhash libxxhash.a xxhash.h libxxhash-dev)
tl_find_static(TL_MD libmd libmd.a sha2.h libmd-dev)
tl_find_static(TL_PCRE2 libpcre2-8 libpcre2-8.a pcre2.h libpcre2-dev)
tl_find_static(TL_UTF8PROC libutf8proc libutf8proc.a utf8proc.h libutf8proc-dev)
tl_find_static(TL_EVENT libevent libevent.a event2/http.h libevent-dev)

set(TL_LUA_LIBRARY ${TL_LUA_ARCHIVE})
set(TL_LUA_INCLUDES ${TL_LUA_HEADERS})
set(TL_INCLUDES ${TL_YAML_HEADERS} ${TL_JANSSON_HEADERS} ${TL_XXHASH_HEADERS} ${TL_MD_HEADERS}
    ${TL_PCRE2_HEADERS} ${TL_UTF8PROC_HEADERS} ${TL_EVENT_HEADERS})
list(REMOVE_DUPLICATES TL_INCLUDES)
list(REMOVE_ITEM TL_INCLUDES /usr/include)
set(TL_LIBRARIES ${TL_YAML_ARCHIVE} ${TL_JANSSON_ARCHIVE} ${TL_XXHASH_ARCHIVE} ${TL_MD_ARCHIVE}
                 ${TL_PCRE2_ARCHIVE} ${TL_UTF8PROC_ARCHIVE} ${TL_EVENT_ARCHIVE}
                 Threads::Threads m ${CMAKE_DL_LIBS})
set(TL_SHARED_LIBRARIES yaml jansson md pcre2-8 utf8proc event Threads::Threads m ${CMAKE_DL_LIBS})
