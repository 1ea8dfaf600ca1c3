/* An engine for other native libraries: a table of plain C functions.
 *
 * A library that cannot link to plimsoll._core (it is built later, against the installed PyTorch)
 * gets the table's address from `plimsoll._core.engine_api()`. An engine is an allocator on one
 * GPU, a real or a simulated one. Its handle comes from `Engine.handle`, and is valid as long as
 * that Python object lives; the handle of an engine that serves the whole process is valid until
 * the process ends. Every function may be called from any thread, with or without the interpreter's
 * lock, and none takes that lock or throws. Sizes are bytes; a stream is the value of its handle.
 *
 * Functions that return `int` return a plimsoll_status. If one fails, `last_error` explains it to
 * the calling thread. A call that fails has changed nothing.
 */
#ifndef PLIMSOLL_ENGINE_API_H
#define PLIMSOLL_ENGINE_API_H

#include <stddef.h>
#include <stdint.h>

#include "plimsoll/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PLIMSOLL_ENGINE_API_VERSION 1

typedef struct plimsoll_engine plimsoll_engine;

typedef struct plimsoll_pool_id {
  uint64_t first;
  uint64_t second;
} plimsoll_pool_id;

typedef struct plimsoll_stat {
  int64_t current, peak, allocated, freed;
} plimsoll_stat;

typedef struct plimsoll_pool_stat {
  plimsoll_stat all, small_pool, large_pool;
} plimsoll_pool_stat;

/* The counters of torch.cuda.memory_stats(), by its names. */
typedef struct plimsoll_statistics {
  plimsoll_pool_stat allocation, segment, active, inactive_split, allocated_bytes, reserved_bytes,
      active_bytes, inactive_split_bytes, requested_bytes;
  plimsoll_stat oversize_allocations, oversize_segments;
  int64_t num_alloc_retries, num_ooms, num_sync_all_streams, num_device_alloc, num_device_free,
      num_oom_rejections, max_split_size;
} plimsoll_statistics;

/* The number of driver calls of one kind, and their times in microseconds. */
typedef struct plimsoll_call_time {
  int64_t count, total, max, min;
} plimsoll_call_time;

/* The counters of page-locked host memory. Segments are the driver's allocations that hold the
 * blocks. */
typedef struct plimsoll_host_statistics {
  plimsoll_stat active, active_bytes, segment, reserved_bytes;
  plimsoll_call_time allocate_time, deallocate_time;
} plimsoll_host_statistics;

enum plimsoll_pool_option {
  PLIMSOLL_USE_ON_OOM = 0, /* requests outside the pool may take its free blocks before they fail */
  PLIMSOLL_NO_SPLIT = 1,   /* the pool's blocks are never split; cannot be switched off */
};

enum plimsoll_block_state {
  PLIMSOLL_ACTIVE_ALLOCATED = 0,
  PLIMSOLL_ACTIVE_PENDING_FREE = 1,
  PLIMSOLL_INACTIVE = 2,
};

typedef struct plimsoll_block {
  uint64_t address, size, requested;
  uint32_t state;
  uint32_t reserved;
} plimsoll_block;

typedef struct plimsoll_segment {
  uint64_t address, total_size, stream;
  plimsoll_pool_id pool;
  uint32_t is_small, is_expandable;
  uint64_t block_count;
  const plimsoll_block* blocks; /* by address */
  /* Rises with the order in which the segments were made. The mapped ranges of one expandable
   * segment may share a number. 0 if the order is unknown. */
  uint64_t number;
} plimsoll_segment;

/* The action of an event; the codes are those of plimsoll::Action. */
enum plimsoll_action {
  PLIMSOLL_ALLOC = 0,
  PLIMSOLL_FREE_REQUESTED = 1,
  PLIMSOLL_FREE_COMPLETED = 2,
  PLIMSOLL_SEGMENT_ALLOC = 3,
  PLIMSOLL_SEGMENT_FREE = 4,
  PLIMSOLL_SEGMENT_MAP = 5,
  PLIMSOLL_SEGMENT_UNMAP = 6,
  PLIMSOLL_SNAPSHOT = 7,
  PLIMSOLL_OOM = 8, /* address: the device's free bytes; size: the rounded request */
};

typedef struct plimsoll_event {
  uint64_t address, size, stream;
  plimsoll_pool_id pool;
  int64_t time_us; /* since the epoch */
  uint32_t action;
  uint32_t reserved;
  uint64_t shared; /* the part of `size` in shared memory */
} plimsoll_event;

/* The live block and the segment in which an address lies. */
typedef struct plimsoll_place {
  uint64_t block, block_size;     /* the live block */
  uint64_t segment, segment_size; /* the driver's allocation around it; virtual: the block itself */
  uint64_t stream;
  plimsoll_pool_id pool;
  uint32_t is_virtual; /* memory is mapped handles, not one driver allocation */
  uint32_t reserved;
} plimsoll_place;

typedef struct plimsoll_engine_api {
  uint32_t version;

  /* Returns the message of this thread's last failed call; empty if none failed. */
  const char* (*last_error)(void);

  /* Allocates a block. After PLIMSOLL_OUT_OF_MEMORY, `last_error` is PyTorch's message. `context`
   * is the caller's number for the call, such as that of a call stack. An engine on a simulated GPU
   * keeps it with the block and the event; other engines ignore it. */
  int (*malloc)(plimsoll_engine*, uint64_t size, uint64_t stream, uint32_t context,
                uint64_t* address);
  /* Allocates exactly the given range, from free memory of the pool and stream. Fails if a part of
   * the range is in use or has no memory. */
  int (*malloc_at)(plimsoll_engine*, uint64_t address, uint64_t size, uint64_t stream,
                   plimsoll_pool_id);
  /* These return PLIMSOLL_UNKNOWN_ADDRESS if no live block of this engine begins at `address`. */
  int (*free)(plimsoll_engine*, uint64_t address, uint32_t context);
  int (*record_stream)(plimsoll_engine*, uint64_t address, uint64_t stream);
  /* Finds the live block around `address`, which may be anywhere inside it. */
  int (*locate)(plimsoll_engine*, uint64_t address, plimsoll_place*);

  int (*empty_cache)(plimsoll_engine*, plimsoll_pool_id);
  int (*memory_info)(plimsoll_engine*, uint64_t* free, uint64_t* total);
  void (*set_limit)(plimsoll_engine*, int has_limit, uint64_t limit);
  /* Returns the size of the largest free block of the default pool, on any stream. */
  uint64_t (*largest_free_block)(plimsoll_engine*);

  /* Between begin and end, requests for which `filter` returns 1 go to the pool. Before PyTorch
   * 2.13, no event is recorded or queried during that time. When the engine no longer uses `data`,
   * it calls `drop` with it. */
  int (*begin_allocate_to_pool)(plimsoll_engine*, plimsoll_pool_id,
                                int (*filter)(void* data, uint64_t stream), void* data,
                                void (*drop)(void* data));
  int (*end_allocate_to_pool)(plimsoll_engine*, plimsoll_pool_id);
  /* Called at the beginning and the end of a graph's capture, in addition to the functions of the
   * pool. The rules of PyTorch 2.13 and later recognise captures only by these calls. */
  int (*begin_graph_capture)(plimsoll_engine*);
  int (*end_graph_capture)(plimsoll_engine*);
  /* Counts one more use of the pool, as each begin does, and creates the pool if it is new. */
  int (*use_pool)(plimsoll_engine*, plimsoll_pool_id);
  int (*release_pool)(plimsoll_engine*, plimsoll_pool_id);
  int (*pool_uses)(plimsoll_engine*, plimsoll_pool_id, int* uses);
  /* Switches a plimsoll_pool_option on (1) or off (0). */
  int (*set_pool_option)(plimsoll_engine*, plimsoll_pool_id, int option, int on);

  void (*statistics)(plimsoll_engine*, plimsoll_statistics*);
  void (*reset_peak_statistics)(plimsoll_engine*);
  void (*reset_accumulated_statistics)(plimsoll_engine*);
  /* Calls `visit` for each segment, by address. `visit` must not call the engine. */
  int (*segments)(plimsoll_engine*, void (*visit)(void* data, const plimsoll_segment*), void* data);
  /* Calls `observe` for every event from now on; null ends that. `observe` is called under the lock
   * of the block's stream, by several threads at a time, and must not call the engine. */
  void (*observe)(plimsoll_engine*, void (*observe)(void* data, const plimsoll_event*), void* data);

  /* Lets another GPU of this process use all of this engine's memory. */
  int (*enable_peer)(plimsoll_engine*, int device);
  /* Exports the memory behind a live virtual block as file descriptors, in order of address. The
   * caller closes them. `offset` is the block's offset in the memory of the first one. Writes at
   * most `capacity` descriptors, and the number of all of them to `count`. */
  int (*export_memory)(plimsoll_engine*, uint64_t address, uint64_t* offset, int* descriptors,
                       uint64_t* sizes, size_t capacity, size_t* count);
  /* Maps memory that another process exported. The caller keeps the descriptors and closes them. */
  int (*import_memory)(plimsoll_engine*, const int* descriptors, const uint64_t* sizes,
                       size_t count, uint64_t* address);
  int (*close_memory)(plimsoll_engine*, uint64_t address);

  /* Allocates page-locked host memory, which every GPU of the process reaches. One pool serves the
   * whole process. It uses the driver of the first engine that is asked for host memory; before
   * that, no address is known and all counters are 0. The pool is a private one that was begun, or
   * {0, 0}, the default pool. */
  int (*host_malloc)(plimsoll_engine*, uint64_t size, plimsoll_pool_id, uint64_t* address);
  /* Returns PLIMSOLL_UNKNOWN_ADDRESS if no live block of the pool begins at `address`. */
  int (*host_free)(uint64_t address);
  /* Notes that queued work on a stream of this engine's GPU uses the block; `address` may be
   * anywhere in it. PLIMSOLL_UNKNOWN_ADDRESS costs no more time than success does. */
  int (*host_record)(plimsoll_engine*, uint64_t address, uint64_t stream);
  int (*host_empty_cache)(void);
  /* Called at the beginning and the end of a graph's capture. The pool's blocks are reused only
   * once `host_release_pool` was called as often as `host_begin_allocate_to_pool`. */
  int (*host_begin_allocate_to_pool)(plimsoll_engine*, plimsoll_pool_id);
  int (*host_end_allocate_to_pool)(void);
  int (*host_release_pool)(plimsoll_pool_id);
  void (*host_statistics)(plimsoll_host_statistics*);
  void (*host_reset_peak_statistics)(void);
  void (*host_reset_accumulated_statistics)(void);
} plimsoll_engine_api;

#ifdef __cplusplus
}
#endif

#endif
