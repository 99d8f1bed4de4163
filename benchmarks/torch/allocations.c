/* Every block of LEAST bytes or more that a process takes and gives back, in order; preloaded. Blocks asked for by the
   Python interpreter itself (dictionaries, code, strings) are not recorded.

   An event is an address and a size, 0 where the block is given back. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST = 1 << 22, LEAST = 1 << 14 };
typedef struct {
  void *block;
  size_t size;
} event;
static event events[MOST];
static atomic_long count;
static atomic_int recording;

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

static void note(void *block, size_t size) {
  long at = atomic_fetch_add(&count, 1);
  if (at < MOST) events[at] = (event){block, size};
}

/* The code of the Python interpreter, which asks for blocks for dictionaries, code and strings, never for tensors. */
static uintptr_t interpreter_begin, interpreter_end;
static int find_interpreter(struct dl_phdr_info *image, size_t size, void *symbol) {
  for (int n = 0; n < image->dlpi_phnum; n++) {
    const ElfW(Phdr) *segment = &image->dlpi_phdr[n];
    uintptr_t begin = image->dlpi_addr + segment->p_vaddr, end = begin + segment->p_memsz;
    if (segment->p_type == PT_LOAD && begin <= (uintptr_t)symbol && (uintptr_t)symbol < end) {
      interpreter_begin = begin, interpreter_end = end;
      return 1;
    }
  }
  return 0;
}

#define CALLER ((uintptr_t)__builtin_return_address(0))
static void *taken(void *block, size_t size, uintptr_t caller) {
  if (block && size >= LEAST && recording && !(interpreter_begin <= caller && caller < interpreter_end))
    note(block, size);
  return block;
}
static void given(void *block) {
  if (block && recording && malloc_usable_size(block) >= LEAST) note(block, 0);
}

void *malloc(size_t size) { return taken(__libc_malloc(size), size, CALLER); }
void *calloc(size_t n, size_t each) { return taken(__libc_calloc(n, each), n * each, CALLER); }
void *memalign(size_t alignment, size_t size) { return taken(__libc_memalign(alignment, size), size, CALLER); }
void *aligned_alloc(size_t alignment, size_t size) { return taken(__libc_memalign(alignment, size), size, CALLER); }
int posix_memalign(void **block, size_t alignment, size_t size) {
  void *found = taken(__libc_memalign(alignment, size), size, CALLER);
  if (!found) return ENOMEM;
  *block = found;
  return 0;
}
void *realloc(void *block, size_t size) {
  given(block);
  return taken(__libc_realloc(block, size), size, CALLER);
}
void free(void *block) {
  given(block);
  __libc_free(block);
}

void allocations_record(int on) {
  void *symbol = dlsym(RTLD_DEFAULT, "PyMem_RawMalloc");
  if (symbol && !interpreter_end) dl_iterate_phdr(find_interpreter, symbol);
  recording = on;
}
long allocations_count(void) { return count < MOST ? count : -1; }
event *allocations_events(void) { return events; }
