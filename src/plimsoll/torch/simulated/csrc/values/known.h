// The knowledge of tensors on a device: of their elements, whichever parts of an allocation's
// contents they lie in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "values/contents.h"

namespace plimsoll::simulated {

// Several threads may call any function of this file at the same time.

// The knowledge of a whole tensor on a device.
struct Known {
  Source source = Source::described;
  Description description;
  std::uint64_t series = 0;  // of a tensor that is drawn from a single series
  std::uint64_t first = 0;
  Origin origin;
};
Known known_of(const at::Tensor& tensor);
Source source_of(const at::Tensor& tensor);
Origin origin_of(const at::Tensor& tensor);
// Describes how a tensor's elements were drawn if they are random, and otherwise what is known of
// them.
Description spread_of(const at::Tensor& tensor);

// Returns whether values can be computed from a tensor: its elements exist, or are few enough to be
// drawn.
bool can_be_read(const at::Tensor& tensor);
// Returns a tensor's elements, and draws those without values: a read-only host tensor, undefined
// if there are too many.
at::Tensor read_values(const at::Tensor& tensor);
// Returns a tensor's elements for writing: existing values, or new ones. Undefined if there is no
// room.
at::Tensor writable_values(const at::Tensor& tensor, bool is_overwritten);

// Notes the source of elements that were written to the tensor's values.
void note_values(const at::Tensor& tensor, Source source);
// Notes the source of elements together with more knowledge: their distribution, of which few
// elements are examined, and their origin.
void note_values(const at::Tensor& tensor, Source source, const Known& known);
// Notes the description of elements that were written on the device alone.
void note_described(const at::Tensor& tensor, const Description& description);
// Notes that bytes of an unknown type were written from `begin` on.
void note_written(Allocation& allocation, std::size_t begin, std::size_t end);
// Sets the elements to those that the host has read; any elements of the description were possible.
void note_told(const at::Tensor& tensor, const at::Tensor& values, const Description& could_be);
// Notes that each element equals that of another tensor: a copy.
void note_same(const at::Tensor& tensor, const Known& as);

// Draws a graph's writes anew, as its replay does.
void replay_writes(std::uint64_t capture);
// Copies the knowledge of old memory to new memory.
void keep_contents(const Allocation& before, Allocation& after);

// Makes a device tensor over the dense memory of a host tensor. It takes no memory of the card, and
// keeps the host tensor alive.
at::Tensor map_host(const at::Tensor& host, c10::DeviceIndex device);

// Fills a host tensor with placeholders for unknown values.
void fill_unknown(const at::Tensor& tensor);

}  // namespace plimsoll::simulated
