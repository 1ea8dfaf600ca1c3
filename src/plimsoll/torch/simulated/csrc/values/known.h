// What is known of tensors on a device: of their elements, whichever parts of an allocation's
// contents these lie in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>

#include "values/contents.h"

namespace plimsoll::simulated {

// All functions of this file may be called by several threads at a time.

// The knowledge of a tensor on a device, as a whole.
struct Known {
  Source source = Source::described;
  Description description;
  std::uint64_t series = 0;  // of a tensor that is drawn from one alone
  std::uint64_t first = 0;
  Origin origin;
};
Known known_of(const at::Tensor& tensor);
Source source_of(const at::Tensor& tensor);
Origin origin_of(const at::Tensor& tensor);
// How its elements were drawn, where they are random; what is known of them otherwise.
Description spread_of(const at::Tensor& tensor);

// Whether anything may be computed of it: its elements are there, or few enough to be drawn.
bool can_be_read(const at::Tensor& tensor);
// Its elements, drawn where they have no values: a read-only tensor of the host, undefined where
// they are too many.
at::Tensor read_values(const at::Tensor& tensor);
// The same, to be written to: values are there, or are made. Undefined where there is no room.
at::Tensor writable_values(const at::Tensor& tensor, bool is_overwritten);

// Says where the elements come from that were written to the tensor's values.
void note_values(const at::Tensor& tensor, Source source);
// The same, where more is known of them: how they are spread, of which only few are looked at, and
// how they came about.
void note_values(const at::Tensor& tensor, Source source, const Known& known);
// Says what is known of elements that were written on the device alone.
void note_described(const at::Tensor& tensor, const Description& description);
// The same of bytes from there on, of an unknown type.
void note_written(Allocation& allocation, std::size_t begin, std::size_t end);
// Makes the elements those that the host has read, which could be any of a description.
void note_told(const at::Tensor& tensor, const at::Tensor& values, const Description& could_be);
// Notes that each element is that of another tensor: a copy.
void note_same(const at::Tensor& tensor, const Known& as);

// Draws anew what a graph writes, as its replay does.
void replay_writes(std::uint64_t capture);
// Has in new memory what is known of the old.
void keep_contents(const Allocation& before, Allocation& after);

// A tensor on a device over the dense memory of a tensor of the host. It takes nothing of the card,
// and the host's tensor lives as long as it does.
at::Tensor map_host(const at::Tensor& host, c10::DeviceIndex device);

// Fills a tensor of the host with placeholders for unknown values.
void fill_unknown(const at::Tensor& tensor);

}  // namespace plimsoll::simulated
