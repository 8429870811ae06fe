/* The two shims between sockets and rmq_feed; they keep no state either. */
#include <errno.h>
#include <sys/socket.h>
#include <sys/types.h>

#include "rmqpy_native.h"

int rmq_receive(rmq_core *core, int64_t peer, int64_t have)
{
    const ssize_t count =
        recv(core->peers[peer].fd, core->in + have, (size_t)(core->in_capacity - have), MSG_DONTWAIT);

    core->in_position = 0;
    core->in_length = have;
    core->cold_count = 0;
    if (count == 0)
        return RMQ_CLOSED;
    if (count < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
            return RMQ_AGAIN;
        core->wanted = errno;
        return RMQ_FAILED;
    }
    core->in_length = have + count;
    return rmq_feed(core, peer);
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
