// Redirects a loaded library's calls of CUDA functions to simulated GPUs.
//
// A library that is linked to libcudart finds NVIDIA's functions if PyTorch was built with CUDA,
// because PyTorch has loaded them first. NVIDIA's functions fail on a machine without a GPU. The
// dynamic linker stored the address of each imported function in the library's global offset table,
// so this file replaces the addresses there.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda_functions.h"
#include "module.h"

namespace plimsoll::python {
namespace {

// Types of relocations that hold the address of a function.
#if defined(__x86_64__)
constexpr std::array kAddresses{R_X86_64_JUMP_SLOT, R_X86_64_GLOB_DAT, R_X86_64_64};
#elif defined(__aarch64__)
constexpr std::array kAddresses{R_AARCH64_JUMP_SLOT, R_AARCH64_GLOB_DAT, R_AARCH64_ABS64};
#else
constexpr std::array<int, 0> kAddresses{};
#endif

bool holds_address(const ElfW(Rela) & relocation) {
  for (const auto type : kAddresses) {
    if (ELF64_R_TYPE(relocation.r_info) == static_cast<ElfW(Xword)>(type)) return true;
  }
  return false;
}

// Replaces `dlsym` in the library. A library with its own cudaMalloc uses `dlsym` to find NVIDIA's.
void* find_symbol(void* handle, const char* name) {
  const auto found = cuda_functions().find(name);
  if (found != cuda_functions().end()) return reinterpret_cast<void*>(found->second);
  return dlsym(handle, name);
}

std::uintptr_t replacement(const std::string& name) {
  if (name == "dlsym") return reinterpret_cast<std::uintptr_t>(&find_symbol);
  const auto found = cuda_functions().find(name);
  return found == cuda_functions().end() ? 0 : found->second;
}

// Stores `address` at `place`. Makes the page writable first, because a loaded library's table can
// be read-only. Returns false if the page stays read-only.
bool store(std::uintptr_t place, std::uintptr_t address) {
  const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  void* const start = reinterpret_cast<void*>(place & ~(page - 1));
  if (mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return false;
  *reinterpret_cast<std::uintptr_t*>(place) = address;
  return true;
}

struct Imports {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela) * functions = nullptr;
  const ElfW(Rela) * data = nullptr;
  std::size_t function_bytes = 0;
  std::size_t data_bytes = 0;
};

Imports imports_of(const link_map& library) {
  Imports found;
  for (const ElfW(Dyn)* entry = library.l_ld; entry->d_tag != DT_NULL; ++entry) {
    const auto value = entry->d_un.d_ptr;
    switch (entry->d_tag) {
      case DT_SYMTAB: found.symbols = reinterpret_cast<const ElfW(Sym)*>(value); break;
      case DT_STRTAB: found.names = reinterpret_cast<const char*>(value); break;
      case DT_JMPREL: found.functions = reinterpret_cast<const ElfW(Rela)*>(value); break;
      case DT_PLTRELSZ: found.function_bytes = entry->d_un.d_val; break;
      case DT_RELA: found.data = reinterpret_cast<const ElfW(Rela)*>(value); break;
      case DT_RELASZ: found.data_bytes = entry->d_un.d_val; break;
      default: break;
    }
  }
  return found;
}

void redirect(const link_map& library, const Imports& imports, const ElfW(Rela) * first,
              std::size_t bytes, std::vector<std::string>& redirected) {
  for (std::size_t index = 0; index < bytes / sizeof(ElfW(Rela)); ++index) {
    const ElfW(Rela)& relocation = first[index];
    if (!holds_address(relocation)) continue;
    const ElfW(Sym)& symbol = imports.symbols[ELF64_R_SYM(relocation.r_info)];
    if (symbol.st_shndx != SHN_UNDEF) continue;  // the library's own function
    const std::string name = imports.names + symbol.st_name;
    const std::uintptr_t address = replacement(name);
    if (address != 0 && store(library.l_addr + relocation.r_offset, address)) {
      redirected.push_back(name);
    }
  }
}

std::vector<std::string> redirect_imports(const std::string& path) {
  std::vector<std::string> redirected;
  void* const handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  const link_map* library = nullptr;
  if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, &library) != 0) return redirected;
  const Imports imports = imports_of(*library);
  if (imports.symbols != nullptr && imports.names != nullptr) {
    redirect(*library, imports, imports.functions, imports.function_bytes, redirected);
    redirect(*library, imports, imports.data, imports.data_bytes, redirected);
  }
  dlclose(handle);
  return redirected;
}

// Returns the address of a function that the library itself defines; 0 if it defines none.
std::uintptr_t own_function(const std::string& path, const std::string& name) {
  void* const handle = dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  const link_map* library = nullptr;
  if (handle == nullptr || dlinfo(handle, RTLD_DI_LINKMAP, &library) != 0) return 0;
  void* const found = dlsym(handle, name.c_str());  // also searches the library's dependencies
  Dl_info owner{};
  const bool is_own = found != nullptr && dladdr(found, &owner) != 0 &&
                      reinterpret_cast<std::uintptr_t>(owner.dli_fbase) == library->l_addr;
  dlclose(handle);
  return is_own ? reinterpret_cast<std::uintptr_t>(found) : 0;
}

}  // namespace

void bind_redirected_imports(nanobind::module_& module) {
  module.def("redirect_imports", &redirect_imports, nanobind::arg("path"),
             "Make a loaded library call simulated GPUs instead of CUDA. Returns the names of the\n"
             "redirected functions.");
  module.def("own_function", &own_function, nanobind::arg("path"), nanobind::arg("name"),
             "The address of a function that a loaded library itself defines; 0 if it has none.");
}

}  // namespace plimsoll::python
