/* PyTorch's own caching allocator, from the libc10_cuda of its wheel, on plimsoll's simulated GPUs:
 * two tables of plain C functions.
 *
 * The library that holds this allocator (torch/wheel) is loaded with a C and a C++ library of its
 * own, so only plain C passes between it and plimsoll. plimsoll passes in a `plimsoll_driver_api`,
 * which answers PyTorch's calls of CUDA, and gets a `plimsoll_wheel_api`, through which it uses the
 * allocator. Only one thread may call at a time. Functions that return `int` return a
 * plimsoll_status and throw nothing. Sizes are bytes; a stream is plimsoll's number for it, below
 * 2^60.
 */
#ifndef PLIMSOLL_WHEEL_API_H
#define PLIMSOLL_WHEEL_API_H

#include <stdint.h>

#include "plimsoll/engine_api.h"
#include "plimsoll/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PLIMSOLL_WHEEL_API_VERSION 1

/* A plimsoll::Driver; driver.h describes each function. */
typedef struct plimsoll_driver plimsoll_driver;

typedef struct plimsoll_driver_api {
  int (*allocate)(plimsoll_driver*, uint64_t size, uint64_t* address);
  int (*deallocate)(plimsoll_driver*, uint64_t address);
  int (*reserve)(plimsoll_driver*, uint64_t size, uint64_t* address);
  int (*unreserve)(plimsoll_driver*, uint64_t address, uint64_t size);
  int (*create)(plimsoll_driver*, uint64_t size, uint64_t* handle);
  int (*release)(plimsoll_driver*, uint64_t handle);
  int (*map)(plimsoll_driver*, uint64_t address, uint64_t size, uint64_t handle);
  int (*set_access)(plimsoll_driver*, uint64_t address, uint64_t size);
  int (*unmap)(plimsoll_driver*, uint64_t address, uint64_t size);
  int (*record)(plimsoll_driver*, uint64_t stream, uint64_t* event);
  int (*query)(plimsoll_driver*, uint64_t event);
  int (*synchronize_event)(plimsoll_driver*, uint64_t event);
  int (*destroy)(plimsoll_driver*, uint64_t event);
  int (*synchronize_stream)(plimsoll_driver*, uint64_t stream);
  int (*synchronize)(plimsoll_driver*);
  /* Writes the card's free bytes, its total bytes, and the bytes that this process uses. */
  void (*memory_info)(plimsoll_driver*, uint64_t* free, uint64_t* total, uint64_t* used);
} plimsoll_driver_api;

typedef struct plimsoll_wheel_api {
  uint32_t version;
  /* Whether this PyTorch's allocator has functions that not every version has. */
  uint32_t has_malloc_at, has_no_split, can_unset_use_on_oom;

  /* Returns PyTorch's message for the last failed call. */
  const char* (*last_error)(void);
  /* Applies settings, in the form of PYTORCH_CUDA_ALLOC_CONF, on top of earlier ones. They hold for
   * all GPUs. */
  int (*configure)(const char* settings);

  /* Makes this driver serve the GPU of this number. GPUs are opened in the order of their numbers.
   * PyTorch's allocator starts when a GPU is first used. After that, no new GPU can be opened; an
   * opened one can be opened again, with a driver of the same memory size, when nothing on it is
   * allocated. `observe` is called for each event during later calls. It must not call the
   * allocator, and its events have no time. */
  int (*open)(int number, const plimsoll_driver_api*, plimsoll_driver*,
              void (*observe)(void* data, const plimsoll_event*), void* data);
  /* Detaches the driver, which is about to be destroyed: from now on, calls for the GPU change only
   * PyTorch's own records. Returns 1; or 0, and does nothing, if the GPU has been opened again with
   * other `data`. */
  int (*close)(int number, void* data);

  int (*malloc)(int number, uint64_t size, uint64_t stream, uint64_t* address);
  int (*malloc_at)(int number, uint64_t address, uint64_t size, uint64_t stream);
  int (*free)(int number, uint64_t address);
  int (*record_stream)(int number, uint64_t address, uint64_t stream);
  /* Empties the caches of all GPUs, as PyTorch does; the given GPU's statistics count the call. */
  int (*empty_cache)(int number, plimsoll_pool_id);

  /* These work as in plimsoll_engine_api, but do not call `drop` if `begin` fails. */
  int (*begin_allocate_to_pool)(int number, plimsoll_pool_id,
                                int (*filter)(void* data, uint64_t stream), void* data,
                                void (*drop)(void* data));
  int (*end_allocate_to_pool)(int number, plimsoll_pool_id);
  int (*use_pool)(int number, plimsoll_pool_id);
  int (*release_pool)(int number, plimsoll_pool_id);
  int (*set_pool_option)(int number, plimsoll_pool_id, int option, int on);
  /* Begins (1) or ends (0) the capture of a graph, on all streams of the GPU. */
  int (*set_capturing)(int number, int on);
  /* Sets the fraction of the GPU's memory that may be reserved; 1 sets no limit. */
  int (*set_fraction)(int number, double fraction);

  /* Writes the statistics, and calls `visit` for each private pool with the bytes that are reserved
   * for it, if this PyTorch counts them. */
  int (*statistics)(int number, plimsoll_statistics*,
                    void (*visit)(void* data, plimsoll_pool_id, const plimsoll_pool_stat*),
                    void* data);
  int (*reset_peak_statistics)(int number);
  int (*reset_accumulated_statistics)(int number);
  /* Writes the size of the largest free block, also of private pools; 1 if there is none. */
  int (*largest_free_block)(int number, uint64_t* size);
  int (*segments)(int number, void (*visit)(void* data, const plimsoll_segment*), void* data);
} plimsoll_wheel_api;

/* Returns the table. The library exports this function. */
const plimsoll_wheel_api* plimsoll_wheel(void);

#ifdef __cplusplus
}
#endif

#endif
