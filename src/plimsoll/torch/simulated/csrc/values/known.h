// Reads and writes what plimsoll knows about the elements of device tensors. A tensor may cover
// several parts of its allocation's contents (contents.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "values/contents.h"

namespace plimsoll::simulated {

// The functions of this file are thread-safe.

// Holds what plimsoll knows about the elements of a whole device tensor.
struct Known {
  Source source = Source::described;
  Description description;
  // The random series (description.h) from which all elements are drawn, and the position of the
  // first element in it. `series` is 0 if the elements come from several series.
  std::uint64_t series = 0;
  std::uint64_t first = 0;
  Origin origin;
};
Known known_of(const at::Tensor& tensor);
Source source_of(const at::Tensor& tensor);
Origin origin_of(const at::Tensor& tensor);
// Returns the distribution from which random elements were drawn. For elements that are not random,
// it returns what is known of them.
Description spread_of(const at::Tensor& tensor);

// Returns whether a computation can read a tensor: its elements have values, or are so few that
// plimsoll can draw values for them.
bool can_be_read(const at::Tensor& tensor);
// Returns a tensor's elements as a read-only host tensor. For elements that have no values, the
// function draws values. If there are too many elements to draw, the function returns an undefined
// tensor.
at::Tensor read_values(const at::Tensor& tensor);
// Returns a host tensor through which the tensor's elements can be written. The host tensor shares
// the memory in which plimsoll keeps the values; plimsoll allocates this memory if there is none.
// If `is_overwritten` is false, the function first draws values for elements that have none. If
// there are too many elements to draw, or the budget of host memory is used up, the function
// returns an undefined tensor.
at::Tensor writable_values(const at::Tensor& tensor, bool is_overwritten);

// Notes that the tensor's elements just got new values, and where these come from.
void note_values(const at::Tensor& tensor, Source source);
// Notes the source of new values, and the distribution and the origin that `known` gives for them.
// plimsoll cannot find out the distribution later, because it computes only bounds from the values.
void note_values(const at::Tensor& tensor, Source source, const Known& known);
// Notes the description of elements that were written, but have no values.
void note_described(const at::Tensor& tensor, const Description& description);
// Notes that the bytes from `begin` to `end` were written, with numbers of an unknown type.
void note_written(Allocation& allocation, std::size_t begin, std::size_t end);
// Sets the elements to the values that the host has read, so that later reads return the same
// values. `could_be` describes the values that the host could have read instead.
void note_told(const at::Tensor& tensor, const at::Tensor& values, const Description& could_be);
// Notes that a tensor is a copy of another tensor. `as` is what plimsoll knows of the other.
void note_same(const at::Tensor& tensor, const Known& as);

// Called when a captured graph is replayed. Notes again everything that the graph writes. New
// random series (description.h) give each replay its own numbers.
void replay_writes(std::uint64_t capture);
// Copies what is known of one allocation's contents to a second allocation.
void keep_contents(const Allocation& before, Allocation& after);

// Returns a device tensor over the dense memory of a host tensor. It takes no memory of the card
// and keeps the host tensor alive.
at::Tensor map_host(const at::Tensor& host, c10::DeviceIndex device);

// Fills a host tensor with placeholders for unknown values.
void fill_unknown(const at::Tensor& tensor);

}  // namespace plimsoll::simulated
