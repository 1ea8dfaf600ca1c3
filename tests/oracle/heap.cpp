// Replaces the C++ library's heap by one that never gives an address twice.
//
// During a capture PyTorch notes which streams used a block (block_to_cudagraph_stream_uses). The
// key of such a note is the address of the block's record. PyTorch does not always remove the note
// with the record, so a later record at the same address inherits the streams. The C library
// decides which address a record gets. With this heap no record inherits streams, because the heap
// never reuses freed memory. The processes are short, so the memory suffices.
#include <cstddef>
#include <cstdlib>
#include <new>

void operator delete(void*) noexcept {}
void operator delete(void*, std::size_t) noexcept {}
