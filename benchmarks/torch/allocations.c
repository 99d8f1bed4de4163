/* Every block of LEAST bytes or more that a process takes and gives back, in order; preloaded.

   An event is an address and a size, 0 where the block is given back. */

#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stddef.h>

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
static void *taken(void *block, size_t size) {
  if (block && size >= LEAST && recording) note(block, size);
  return block;
}
static void given(void *block) {
  if (block && recording && malloc_usable_size(block) >= LEAST) note(block, 0);
}

void *malloc(size_t size) { return taken(__libc_malloc(size), size); }
void *calloc(size_t n, size_t each) { return taken(__libc_calloc(n, each), n * each); }
void *memalign(size_t alignment, size_t size) { return taken(__libc_memalign(alignment, size), size); }
void *aligned_alloc(size_t alignment, size_t size) { return taken(__libc_memalign(alignment, size), size); }
int posix_memalign(void **block, size_t alignment, size_t size) {
  void *found = memalign(alignment, size);
  if (!found) return ENOMEM;
  *block = found;
  return 0;
}
void *realloc(void *block, size_t size) {
  given(block);
  return taken(__libc_realloc(block, size), size);
}
void free(void *block) {
  given(block);
  __libc_free(block);
}

void allocations_record(int on) { recording = on; }
long allocations_count(void) { return count < MOST ? count : -1; }
event *allocations_events(void) { return events; }
