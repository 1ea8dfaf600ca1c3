/* The engine for other native libraries: a table of plain C functions.
 *
 * A library that cannot link to plimsoll._core (it is built later, against the installed PyTorch)
 * gets the table's address from `plimsoll._core.c_api()`. An engine is an allocator on one device
 * with its driver; its handle comes from `Engine.handle` and lives as long as that Python object.
 * Every function may be called from any thread, with or without the interpreter's lock; none
 * throws. Sizes are bytes, times nanoseconds. A status of 0 is success.
 */
#ifndef PLIMSOLL_C_API_H
#define PLIMSOLL_C_API_H

#include <stddef.h>
#include <stdint.h>

#include "plimsoll/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PLIMSOLL_C_API_VERSION 2

typedef struct plimsoll_engine plimsoll_engine;

typedef struct plimsoll_c_api {
  uint32_t version;

  /* `context` is the caller's number for what follows, kept with block and event.
   * On failure `message` holds PyTorch's text, cut at `capacity`. */
  int (*malloc)(plimsoll_engine*, uint64_t size, uint64_t stream, uint32_t context,
                uint64_t* address, char* message, size_t capacity);
  int (*free)(plimsoll_engine*, uint64_t address, uint32_t context);
  int (*record_stream)(plimsoll_engine*, uint64_t address, uint64_t stream);

  /* The device's queues. An event is a number; 0 is none. */
  void (*launch)(plimsoll_engine*, uint64_t stream, double duration_ns);
  void (*advance)(plimsoll_engine*, double host_ns);
  /* When all that is queued on the stream will be done. */
  double (*done_at)(plimsoll_engine*, uint64_t stream);
  int (*record_event)(plimsoll_engine*, uint64_t stream, uint64_t* event);
  int (*query_event)(plimsoll_engine*, uint64_t event);
  int (*synchronize_event)(plimsoll_engine*, uint64_t event);
  int (*destroy_event)(plimsoll_engine*, uint64_t event);
  int (*wait_event)(plimsoll_engine*, uint64_t stream, uint64_t event);
  int (*synchronize_stream)(plimsoll_engine*, uint64_t stream);
  void (*synchronize_device)(plimsoll_engine*);

  /* Pinned host memory, by bytes: the accounting only. */
  int (*allocate_host)(plimsoll_engine*, uint64_t size, uint64_t* address);
  int (*deallocate_host)(plimsoll_engine*, uint64_t address);

  /* What of this memory of the device's lies in the host's, so that kernels reach it by the bus. */
  uint64_t (*shared_bytes)(plimsoll_engine*, uint64_t address, uint64_t size);

  /* The number of this thread's Python call stack; 0 where it has none. */
  uint32_t (*capture_stack)(void);
} plimsoll_c_api;

#ifdef __cplusplus
}
#endif

#endif
