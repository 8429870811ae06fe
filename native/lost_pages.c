/* A page of a mapped file that the disk cannot deliver (a bad sector, a truncated file) raises
 * SIGBUS at its first access. For known mappings the handler puts a page of zeros in its place and
 * records it, so that the reader finds damage instead of the process its end. It runs in any thread
 * at any instruction: it uses only atomics and one mmap. This is the only state in the core, because
 * a process has one handler. */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

#include "rmqpy_native.h"

typedef struct {
    _Atomic uintptr_t begin, end; /* 0: no mapping */
    _Atomic int64_t lost_from, lost_to;
} mapping;

static mapping mappings[RMQ_MAPPINGS_MAX]; /* pages of it that are not used cost nothing */
static _Atomic int32_t used;               /* one more than the largest number in use so far */
static _Atomic int64_t lost_count;
static uintptr_t page_size; /* 0: the handler is not installed */
static struct sigaction previous;

static void note_lost(mapping *of, int64_t from, int64_t to)
{
    int64_t known = atomic_load(&of->lost_from);
    while (from < known && !atomic_compare_exchange_weak(&of->lost_from, &known, from))
        ;
    known = atomic_load(&of->lost_to);
    while (to > known && !atomic_compare_exchange_weak(&of->lost_to, &known, to))
        ;
    atomic_fetch_add(&lost_count, 1);
}

static mapping *find_mapping(uintptr_t address)
{
    const int32_t count = atomic_load(&used);

    for (int32_t i = 0; i < count; i++) {
        const uintptr_t begin = atomic_load(&mappings[i].begin);
        if (begin != 0 && address >= begin && address < atomic_load(&mappings[i].end))
            return &mappings[i];
    }
    return NULL;
}

static int replace_page(uintptr_t address)
{
    mapping *const found = find_mapping(address);
    const uintptr_t page = address - address % page_size;

    if (found == NULL
        || mmap((void *)page, page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0)
               == MAP_FAILED)
        return 0;
    const int64_t from = (int64_t)(page - atomic_load(&found->begin));
    note_lost(found, from, from + (int64_t)page_size);
    return 1;
}

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    const int before = errno;

    if (replace_page((uintptr_t)info->si_addr)) {
        errno = before;
        return;
    }
    if (previous.sa_flags & SA_SIGINFO)
        previous.sa_sigaction(number, info, context);
    else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN)
        previous.sa_handler(number);
    else
        sigaction(SIGBUS, &previous, NULL); /* the access is repeated, and has its usual effect */
    errno = before;
}

static int install_handler(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK};

    if (page_size != 0)
        return 1;
    const long size = sysconf(_SC_PAGESIZE);
    if (size <= 0)
        return 0;
    page_size = (uintptr_t)size;
    sigemptyset(&action.sa_mask);
    if (sigaction(SIGBUS, &action, &previous) == 0)
        return 1;
    page_size = 0;
    return 0;
}

int rmq_guard_mapping(int32_t number, const uint8_t *begin, int64_t length)
{
    if (number < 0 || number >= RMQ_MAPPINGS_MAX || length <= 0 || !install_handler())
        return 0;
    mapping *const guarded = &mappings[number];
    atomic_store(&guarded->lost_from, INT64_MAX);
    atomic_store(&guarded->lost_to, 0);
    atomic_store(&guarded->end, (uintptr_t)begin + (uintptr_t)length);
    atomic_store(&guarded->begin, (uintptr_t)begin);
    int32_t known = atomic_load(&used);
    while (number >= known && !atomic_compare_exchange_weak(&used, &known, number + 1))
        ;
    return 1;
}

void rmq_forget_mapping(int32_t number)
{
    atomic_store(&mappings[number].begin, 0);
}

int64_t rmq_lost_pages(void)
{
    return atomic_load_explicit(&lost_count, memory_order_relaxed);
}

int rmq_lost_range(int32_t number, int64_t *from, int64_t *to)
{
    *from = atomic_load(&mappings[number].lost_from);
    *to = atomic_load(&mappings[number].lost_to);
    return *from < *to;
}

int rmq_is_lost(const uint8_t *data, int64_t length)
{
    const mapping *const found = find_mapping((uintptr_t)data);

    if (found == NULL)
        return 0;
    const int64_t position = (int64_t)((uintptr_t)data - found->begin);
    return position < found->lost_to && position + length > found->lost_from;
}
