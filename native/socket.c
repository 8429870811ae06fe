/* Receives and sends around rmq_feed, which uses no socket. */
#include <errno.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/epoll.h>
#endif

#include "rmqpy_native.h"

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
    for (int i = 0; i < count; i++)
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
        const int status = core->peers[peer].excluded ? RMQ_EXCLUDED : rmq_receive(core, peer, 0);
        if (status != RMQ_DONE)
            return status;
    }
    return RMQ_NONE_LEFT;
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

int64_t rmq_send(rmq_core *core)
{
    int64_t unfinished = 0;

    for (int64_t i = 0; i < core->outgoing_count; i++) {
        rmq_outgoing *const entry = &core->outgoing[i];
        rmq_peer *const to = &core->peers[entry->peer];
        entry->sent = 0;
        if (to->fd >= 0 && !to->queued && entry->length > 0) {
            const ssize_t count =
                send(to->fd, core->out + entry->start, (size_t)entry->length, MSG_DONTWAIT | MSG_NOSIGNAL);
            entry->sent = count >= 0 ? count : errno == EAGAIN || errno == EINTR ? 0 : -(int64_t)errno;
            to->queued = entry->sent >= 0 && entry->sent < entry->length;
        }
        unfinished += entry->sent != entry->length;
    }
    return unfinished;
}
