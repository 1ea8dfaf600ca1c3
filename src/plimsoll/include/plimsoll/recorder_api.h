/* Records events, for other native libraries: a table of plain C functions.
 *
 * A library that cannot link to plimsoll._core (it is built later, against the installed PyTorch)
 * gets the table's address from `plimsoll._core.recorder_api()`. A buffer's handle comes from
 * `EventBuffer.handle` and is valid until the process ends. Both functions may be called from any
 * thread, with or without the interpreter's lock; none throws.
 */
#ifndef PLIMSOLL_RECORDER_API_H
#define PLIMSOLL_RECORDER_API_H

#include <stdint.h>

#include "plimsoll/engine_api.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PLIMSOLL_RECORDER_API_VERSION 1

typedef struct plimsoll_event_buffer plimsoll_event_buffer;

typedef struct plimsoll_recorder_api {
  uint32_t version;

  /* Copies the event, or counts it as dropped; takes a lock that is held for nothing else. */
  void (*add)(plimsoll_event_buffer*, int32_t device, const plimsoll_event*, uint32_t stack);
  /* The number of this thread's Python call stack; 0 where it has none. Takes the interpreter's
   * lock for stacks that are new, so the caller must hold no lock that somebody who has it may
   * want. */
  uint32_t (*capture_stack)(void);
} plimsoll_recorder_api;

#ifdef __cplusplus
}
#endif

#endif
