/* Records events, for other native libraries: a table of plain C functions.
 *
 * A library that cannot link to plimsoll._core (it is built later, against the installed PyTorch)
 * gets the table's address from `plimsoll._core.recorder_api()`. A buffer's handle comes from
 * `EventBuffer.handle` and is valid until the process ends. The functions may be called from any
 * thread, with or without the interpreter's lock; none throws.
 */
#ifndef PLIMSOLL_RECORDER_API_H
#define PLIMSOLL_RECORDER_API_H

#include <stdint.h>

#include "plimsoll/engine_api.h"

#ifdef __cplusplus
extern "C" {
#endif

#define PLIMSOLL_RECORDER_API_VERSION 2

typedef struct plimsoll_event_buffer plimsoll_event_buffer;

typedef struct plimsoll_recorder_api {
  uint32_t version;

  /* Copies the event to the buffer; if the buffer is full, counts the event as dropped. Takes a
   * lock that protects only the buffer. */
  void (*add)(plimsoll_event_buffer*, int32_t device, const plimsoll_event*, uint32_t stack);
  /* Returns the number of this thread's Python call stack; 0 if it has none. If the stack is new,
   * takes the interpreter's lock. So the caller must not hold a lock that another thread may wait
   * for while that thread holds the interpreter's lock. */
  uint32_t (*capture_stack)(void);
  /* Returns the number of the stack that has the frames of `inner`, then those of `outer`. Both are
   * numbers that these functions returned. Always takes the interpreter's lock. */
  uint32_t (*join_stacks)(uint32_t inner, uint32_t outer);
} plimsoll_recorder_api;

#ifdef __cplusplus
}
#endif

#endif
