"""Shows PyTorch's caching allocator on a simulated GPU: change the script and see what happens."""

from plimsoll import Allocator, OutOfMemoryError, SimulatedGpu
from plimsoll.base.units import format_size


def show(moment: str, allocator: Allocator) -> None:
    """Print what is allocated and what is reserved."""
    allocated = format_size(allocator.memory_allocated())
    reserved = format_size(allocator.memory_reserved())
    print(f"{moment:<46} allocated {allocated:>10}   reserved {reserved:>10}")


def main() -> None:
    """Allocate, free, cache, empty the cache, run out of memory, use two streams."""
    gpu = SimulatedGpu("8GiB")
    allocator = Allocator(gpu)
    weights = allocator.malloc("381MiB")
    show("a tensor of 381 MiB", allocator)
    small = allocator.malloc("3MiB")
    show("3 MiB more: a segment of 20 MiB", allocator)
    allocator.free(weights)
    show("the first is deleted: its memory is kept", allocator)
    allocator.malloc("200MiB")
    show("200 MiB: served from what was kept", allocator)
    allocator.free(small)
    allocator.empty_cache()
    show("empty_cache: whole free segments go back", allocator)

    allocator.set_per_process_memory_fraction(0.5)
    try:
        allocator.malloc("5GiB")
    except OutOfMemoryError as error:
        print(f"\n{error}\n")

    copies = 7
    batch = allocator.malloc("64MiB", stream=copies)
    gpu.launch(0, seconds=0.010)
    allocator.record_stream(batch, 0)
    allocator.free(batch)
    second = allocator.malloc("64MiB", stream=copies)
    print(f"freed while stream 0 still used it: reused at once? {second == batch}")
    gpu.machine.advance(0.020)
    third = allocator.malloc("64MiB", stream=copies)
    print(f"after that work is done:            reused?         {third == batch}")
    print(f"\n{allocator.memory_summary(abbreviated=True)}")


if __name__ == "__main__":
    main()
