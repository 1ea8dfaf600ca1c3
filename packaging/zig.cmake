# Compiles with the clang of the package ziglang, for the system that a wheel names, whatever is here.
# The environment has PLIMSOLL_ZIG, its program, and PLIMSOLL_TARGET, such as
# x86_64-linux-gnu.2.28 or x86_64-windows-gnu.
string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR "$ENV{PLIMSOLL_TARGET}")
if("$ENV{PLIMSOLL_TARGET}" MATCHES "windows")
  set(CMAKE_SYSTEM_NAME Windows)
else()
  set(CMAKE_SYSTEM_NAME Linux)
endif()
set(CMAKE_CXX_COMPILER "$ENV{PLIMSOLL_ZIG}" c++ -target "$ENV{PLIMSOLL_TARGET}")
# `zig ar` is two words, which CMAKE_AR cannot be.
set(CMAKE_CXX_ARCHIVE_CREATE "\"$ENV{PLIMSOLL_ZIG}\" ar qc <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_APPEND "\"$ENV{PLIMSOLL_ZIG}\" ar q <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "\"$ENV{PLIMSOLL_ZIG}\" ranlib <TARGET>")
