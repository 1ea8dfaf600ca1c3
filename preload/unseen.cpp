#include "unseen.h"

#include <elf.h>

#include "kernel.h"
#include "layer.h"

namespace plimsoll::scratch {
namespace {

constexpr std::size_t kLongestLine = 256;  // of a script's first one, as the kernel reads it

// A file that is open while it lives.
class OpenFile {
 public:
  explicit OpenFile(const char* path) : file_(kernel::open(path, O_RDONLY)) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (file_ >= 0) kernel::close(file_);
  }
  // How much of it there was, of what was wanted.
  std::size_t read(void* to, std::size_t size, std::size_t from) const {
    const long found = syscall(SYS_pread64, file_, to, size, from);
    return found < 0 ? 0 : static_cast<std::size_t>(found);
  }

 private:
  int file_;
};

// Go's programs have a note of their own, and call the kernel also where they use libc.
bool is_go_note(const OpenFile& file, const Elf64_Phdr& segment) {
  struct {
    Elf64_Nhdr header;
    char name[4];
  } note{};
  return segment.p_type == PT_NOTE &&
         file.read(&note, sizeof note, segment.p_offset) == sizeof note &&
         std::memcmp(note.name, "Go\0", sizeof note.name) == 0;
}

// An ELF file whose loader would not load the layer's library, or that would not call it.
bool is_unseen(const OpenFile& file) {
  Elf64_Ehdr header;
  if (file.read(&header, sizeof header, 0) != sizeof header) return false;
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return false;
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return true;
  bool has_loader = false;
  bool is_go = false;
  for (std::size_t at = 0; at < header.e_phnum; ++at) {
    Elf64_Phdr segment;
    const std::size_t from = header.e_phoff + at * header.e_phentsize;
    if (file.read(&segment, sizeof segment, from) != sizeof segment) return false;
    has_loader = has_loader || segment.p_type == PT_INTERP;
    is_go = is_go || is_go_note(file, segment);
  }
  return !has_loader || is_go;
}

// The interpreter that a script's first line names.
bool interpreter_of(const OpenFile& file, char (&path)[kLongestLine]) {
  const std::size_t size = file.read(path, sizeof path - 1, 0);
  path[size] = '\0';
  if (size < 3 || path[0] != '#' || path[1] != '!') return false;
  const char* start = path + 2 + std::strspn(path + 2, " \t");
  const std::size_t length = std::strcspn(start, " \t\r\n");
  std::memmove(path, start, length);
  path[length] = '\0';
  return length > 0;
}

void note(const char* path) {
  Path file = top_folder();
  Place place;
  Path line;
  if (!file.append("/unseen") || find(AT_FDCWD, path, true, place) != 0) return;
  line = place.path;
  to_seen(line);
  if (!line.append("\n")) return;
  const int to = kernel::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (to < 0) return;
  (void)!syscall(SYS_write, to, line.c_str(), line.size());
  kernel::close(to);
}

// `ldconfig -p` prints which libraries there are. Python's ctypes runs it to find one, and so do
// libraries when they are imported.
bool only_prints(const char* path, char* const* arguments) {
  const char* const slash = std::strrchr(path, '/');
  return std::strcmp(slash == nullptr ? path : slash + 1, "ldconfig") == 0 &&
         arguments != nullptr && arguments[0] != nullptr && arguments[1] != nullptr &&
         std::strcmp(arguments[1], "-p") == 0;
}

}  // namespace

void note_if_unseen(const char* path, char* const* arguments) {
  if (only_prints(path, arguments)) return;
  const int error = errno;
  const OpenFile file(path);
  char interpreter[kLongestLine];
  if (interpreter_of(file, interpreter)) {
    if (is_unseen(OpenFile(interpreter))) note(interpreter);
  } else if (is_unseen(file)) {
    note(path);
  }
  errno = error;
}

}  // namespace plimsoll::scratch
