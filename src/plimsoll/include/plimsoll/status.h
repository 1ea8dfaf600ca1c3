/* The status that functions of the C tables return. */
#ifndef PLIMSOLL_STATUS_H
#define PLIMSOLL_STATUS_H

enum plimsoll_status {
  PLIMSOLL_SUCCESS = 0,
  PLIMSOLL_OUT_OF_MEMORY = 1,
  PLIMSOLL_FAILED = 2,
  PLIMSOLL_NOT_READY = 3,
  PLIMSOLL_UNKNOWN_ADDRESS = 4,
};

#endif
