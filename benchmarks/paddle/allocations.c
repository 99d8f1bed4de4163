/* Bytes that Paddle 1.8.5 holds, which does not count them itself: preloaded, with FLAGS_use_system_allocator=1.

   Its tensors are what it asks of posix_memalign, byte for byte. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum { SLOTS = 1 << 20 };
static void *const GONE = (void *)1;
static void *blocks[SLOTS];
static size_t sizes[SLOTS];
static long held, highest;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static unsigned slot(const void *block) { return (unsigned)(((uintptr_t)block >> 5) * 2654435761u) % SLOTS; }

int posix_memalign(void **block, size_t alignment, size_t size) {
  static int (*original)(void **, size_t, size_t);
  if (!original) original = (int (*)(void **, size_t, size_t))dlsym(RTLD_NEXT, "posix_memalign");
  int failed = original(block, alignment, size);
  if (failed) return failed;
  pthread_mutex_lock(&lock);
  unsigned at = slot(*block);
  while (blocks[at] && blocks[at] != GONE) at = (at + 1) % SLOTS;
  blocks[at] = *block;
  sizes[at] = size;
  held += (long)size;
  if (held > highest) highest = held;
  pthread_mutex_unlock(&lock);
  return 0;
}

void free(void *block) {
  static void (*original)(void *);
  if (!original) original = (void (*)(void *))dlsym(RTLD_NEXT, "free");
  if (block && held) {
    pthread_mutex_lock(&lock);
    for (unsigned at = slot(block); blocks[at]; at = (at + 1) % SLOTS)
      if (blocks[at] == block) {
        blocks[at] = GONE;
        held -= (long)sizes[at];
        break;
      }
    pthread_mutex_unlock(&lock);
  }
  original(block);
}

long allocations_current(void) { return held; }
long allocations_peak(void) { return highest; }
void allocations_reset(void) { highest = held; }
