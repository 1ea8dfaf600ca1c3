# Cross compiles with the clang of the package ziglang, against the glibc that a wheel names.
# packaging/wheels.py sets PLIMSOLL_ZIG, the program, and PLIMSOLL_TARGET, such as
# x86_64-linux-gnu.2.28, in the environment.
string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR "$ENV{PLIMSOLL_TARGET}")
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_CXX_COMPILER "$ENV{PLIMSOLL_ZIG}" c++ -target "$ENV{PLIMSOLL_TARGET}")
# `zig ar` is two words, which CMAKE_AR cannot be.
set(CMAKE_CXX_ARCHIVE_CREATE "\"$ENV{PLIMSOLL_ZIG}\" ar qc <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_APPEND "\"$ENV{PLIMSOLL_ZIG}\" ar q <TARGET> <OBJECTS>")
set(CMAKE_CXX_ARCHIVE_FINISH "\"$ENV{PLIMSOLL_ZIG}\" ranlib <TARGET>")
