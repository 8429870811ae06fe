/* Receives and sends around rmq_feed, and says whether another connection waits. */
#include <errno.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/epoll.h>
#endif

#include "rmqpy_native.h"

#define PARTS_MAX 64 /* entries that one call sends */
#define PASSED_OVER_MAX 8
#define READY_MAX 64 /* connections that are asked for before a pull goes on */

int rmq_receive(rmq_core *core, int64_t peer, int64_t buffered)
{
    const ssize_t count =
        recv(core->peers[peer].fd, core->in + buffered, (size_t)(core->in_capacity - buffered), MSG_DONTWAIT);

    core->in_position = 0;
    core->in_length = buffered;
    core->fallback_count = 0;
    if (count == 0)
        return RMQ_CLOSED;
    if (count < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
            return RMQ_AGAIN;
        core->status_detail = errno;
        return RMQ_FAILED;
    }
    core->in_length = buffered + count;
    return rmq_feed(core, peer);
}

#ifdef __linux__
static void poll_ready(rmq_core *core)
{
    struct epoll_event found[sizeof core->ready / sizeof core->ready[0]];
    const int count = epoll_wait(core->ready_fd, found, sizeof found / sizeof found[0], 0);

    core->ready_next = core->ready_count = 0;
    for (int filters = 0; filters <= 1; filters++)
        for (int i = 0; i < count; i++)
            if (core->peers[found[i].data.u32].filters == filters)
                core->ready[core->ready_count++] = (int32_t)found[i].data.u32;
}

int rmq_receive_ready(rmq_core *core, int is_start)
{
    if (is_start)
        poll_ready(core);
    while (core->ready_next < core->ready_count) {
        const int32_t peer = core->ready[core->ready_next++];
        if (core->peers[peer].fd < 0)
            continue; /* Python has closed it meanwhile */
        /* One that filters is left unread if the share is used, but not for ever: once it is read, Python puts it first. */
        if (core->peers[peer].filters && core->scan_work >= core->scan_work_max
            && core->peers[peer].passed_over++ < PASSED_OVER_MAX)
            continue;
        core->peers[peer].passed_over = 0;
        const int status = core->peers[peer].excluded ? RMQ_EXCLUDED : rmq_receive(core, peer, 0);
        if (status != RMQ_DONE)
            return status;
    }
    return RMQ_NONE_LEFT;
}

int rmq_is_another_ready(const rmq_core *core, int64_t peer)
{
    struct epoll_event found[READY_MAX];

    for (int i = core->ready_next; i < core->ready_count; i++)
        if (!core->peers[core->ready[i]].filters)
            return 1;
    const int count = core->ready_fd < 0 ? 0 : epoll_wait(core->ready_fd, found, READY_MAX, 0);
    for (int i = 0; i < count; i++)
        if (found[i].data.u32 != (uint32_t)peer && !core->peers[found[i].data.u32].filters)
            return 1;
    return 0;
}

int rmq_watch(rmq_core *core, int64_t peer, int enable)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)peer};

    if (core->ready_fd < 0)
        core->ready_fd = epoll_create1(EPOLL_CLOEXEC);
    if (core->ready_fd < 0
        || epoll_ctl(core->ready_fd, enable ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, core->peers[peer].fd, &event) < 0)
        return errno;
    return 0;
}
#else
int rmq_receive_ready(rmq_core *core, int is_start)
{
    (void)core;
    (void)is_start;
    return RMQ_NONE_LEFT;
}

int rmq_is_another_ready(const rmq_core *core, int64_t peer)
{
    (void)core;
    (void)peer;
    return 0;
}

int rmq_watch(rmq_core *core, int64_t peer, int enable)
{
    (void)core;
    (void)peer;
    (void)enable;
    return ENOSYS;
}
#endif

void rmq_watch_none(rmq_core *core)
{
    if (core->ready_fd >= 0)
        close(core->ready_fd);
    core->ready_fd = -1;
}

/* Link the entries for each peer in their order. */
static void link_entries(rmq_core *core)
{
    for (int64_t i = 0; i < core->outgoing_count; i++)
        core->peers[core->outgoing[i].peer].last_outgoing = 0;
    for (int64_t i = 0; i < core->outgoing_count; i++) {
        int32_t *const last = &core->peers[core->outgoing[i].peer].last_outgoing;
        core->outgoing[i].sent = core->outgoing[i].next = 0;
        core->outgoing[i].is_next = *last != 0 || core->outgoing[i].length == 0;
        if (core->outgoing[i].length == 0)
            continue; /* the gate has it */
        if (*last != 0)
            core->outgoing[*last - 1].next = (int32_t)i + 1;
        *last = (int32_t)i + 1;
    }
}

/* Send up to PARTS_MAX entries for a peer from `entry` on. Returns the next one, or NULL if none is
 * left or the peer accepts no more. */
static rmq_outgoing *send_entries(rmq_core *core, rmq_peer *to, rmq_outgoing *entry)
{
    rmq_outgoing *entries[PARTS_MAX];
    struct iovec parts[PARTS_MAX];
    int count = 0;

    for (int more = 1; more && count < PARTS_MAX; count++) {
        entries[count] = entry;
        parts[count] = (struct iovec){core->out + entry->start, (size_t)entry->length};
        more = entry->next != 0;
        entry = more ? &core->outgoing[entry->next - 1] : NULL;
    }
    const struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    ssize_t rest = sendmsg(to->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (rest < 0) {
        const int failed = errno != EAGAIN && errno != EINTR;
        entries[0]->sent = failed ? -(int64_t)errno : 0;
        to->queued = !failed;
        return NULL;
    }
    for (int i = 0; i < count; i++) {
        entries[i]->sent = rest < entries[i]->length ? rest : entries[i]->length;
        rest -= entries[i]->sent;
        to->queued |= entries[i]->sent < entries[i]->length;
    }
    return to->queued ? NULL : entry;
}

int64_t rmq_send(rmq_core *core)
{
    int64_t unfinished = 0;

    link_entries(core);
    for (int64_t i = 0; i < core->outgoing_count; i++) {
        rmq_outgoing *const first = &core->outgoing[i];
        rmq_peer *const to = &core->peers[first->peer];
        if (!first->is_next && to->fd >= 0 && !to->queued)
            for (rmq_outgoing *entry = first; entry != NULL;)
                entry = send_entries(core, to, entry);
    }
    for (int64_t i = 0; i < core->outgoing_count; i++)
        unfinished += core->outgoing[i].sent != core->outgoing[i].length;
    return unfinished;
}
