// Replaces the C++ library's heap by one that never gives an address twice.
//
// During a capture PyTorch notes, by the address of a block's record, the streams that used the
// block (block_to_cudagraph_stream_uses). It does not always remove this note with the record, so a
// later record at the same address inherits the streams. Which address a record gets is up to the C
// library. The processes are short, so they need not reuse freed memory.
#include <cstddef>
#include <cstdlib>
#include <new>

void operator delete(void*) noexcept {}
void operator delete(void*, std::size_t) noexcept {}
