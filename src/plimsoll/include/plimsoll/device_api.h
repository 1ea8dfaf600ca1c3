/* A simulated GPU for other native libraries: a table of plain C functions. Its device memory is in
 * plimsoll/engine_api.h; everything else is here.
 *
 * The table's address comes from `plimsoll._core.device_api()`, and a device's handle from
 * `SimulatedDriver.handle`, valid as long as that Python object lives. Every function may be called
 * from any thread, with or without the interpreter's lock; none throws. Sizes are bytes, times
 * nanoseconds. A status of 0 is success.
 */
#ifndef PLIMSOLL_DEVICE_API_H
#define PLIMSOLL_DEVICE_API_H

#include <stdint.h>

#include "plimsoll/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PLIMSOLL_DEVICE_API_VERSION 1

typedef struct plimsoll_device plimsoll_device;

typedef struct plimsoll_device_api {
  uint32_t version;

  /* The device's streams. An event is a number; 0 is no event. */
  void (*launch)(plimsoll_device*, uint64_t stream, double duration_ns);
  void (*advance)(plimsoll_device*, double host_ns);
  /* Returns the time at which all work queued on the stream will be done. */
  double (*done_at)(plimsoll_device*, uint64_t stream);
  int (*record_event)(plimsoll_device*, uint64_t stream, uint64_t* event);
  int (*query_event)(plimsoll_device*, uint64_t event);
  int (*synchronize_event)(plimsoll_device*, uint64_t event);
  int (*destroy_event)(plimsoll_device*, uint64_t event);
  int (*wait_event)(plimsoll_device*, uint64_t stream, uint64_t event);
  int (*synchronize_stream)(plimsoll_device*, uint64_t stream);
  void (*synchronize_device)(plimsoll_device*);

  /* Pinned host memory, which is only counted: nothing is really allocated. */
  int (*allocate_host)(plimsoll_device*, uint64_t size, uint64_t* address);
  int (*deallocate_host)(plimsoll_device*, uint64_t address);

  /* Returns how many bytes of this range lie in host memory, which kernels reach over the bus. */
  uint64_t (*shared_bytes)(plimsoll_device*, uint64_t address, uint64_t size);
} plimsoll_device_api;

#ifdef __cplusplus
}
#endif

#endif
