/* The least that a broker can do for a send on this machine: take bytes from sockets, find the frames, write as many
 * bytes as their records would have to a file, answer. It understands nothing, keeps no queue and no index, and every
 * answer is the same but for the opaque. What compare.py measures of it is a ceiling: no broker that receives by
 * recv, stores by pwrite and answers by send can cost less here.
 *
 *     floor PORT FILE     (JSON headers only; one thread; ends when it is killed)
 *
 * A read takes up to 256 KiB of one connection; what all connections brought since the last wait is written with one
 * pwrite, as the broker does; then each connection gets its answers with one send. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define READ_BYTES (256 * 1024)
#define ROOM (2 * READ_BYTES)
#define CONNECTIONS_MAX 4096
#define RECORD_MORE 156 /* a record of the load generator's has that much besides its body */
#define FILE_BYTES ((int64_t)1 << 30)
#define ANSWER_MAX 512

/* As long as a broker's answer to a send; the opaque stands between the two. */
static const char BEFORE[] = "{\"code\":0,\"extFields\":{\"queueId\":\"0\",\"MSG_REGION\":\"DefaultRegion\",\"msgId\":"
                             "\"7F00000100002A9F0000000000000000\",\"TRACE_ON\":\"true\",\"queueOffset\":\"1234567\"},"
                             "\"flag\":1,\"language\":\"JAVA\",\"opaque\":";
static const char BEHIND[] = ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":399}";

struct connection {
    size_t have, answered;
    uint8_t in[ROOM], *out;
};

static struct connection *connections[CONNECTIONS_MAX];
static uint8_t store[64 * READ_BYTES];
static size_t stored;

static void fail(const char *what)
{
    perror(what);
    exit(1);
}

static uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static void put32(uint8_t *p, uint32_t value)
{
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* Answers the request in a frame and keeps the bytes of its body, and as many as a record has more. */
static void take(struct connection *c, const uint8_t *frame, size_t size)
{
    const size_t header = get32(frame + 4) & 0xFFFFFF, body = size - 4 - header;
    const char *at = memmem(frame + 8, header, "\"opaque\":", 9);
    size_t digits = 0;

    if (at == NULL || body + RECORD_MORE > sizeof store - stored)
        return;
    for (at += 9; at[digits] >= '0' && at[digits] <= '9'; digits++)
        ;
    memcpy(store + stored, frame, RECORD_MORE);
    memcpy(store + stored + RECORD_MORE, frame + 8 + header, body);
    stored += RECORD_MORE + body;
    uint8_t *const out = c->out + c->answered;
    const size_t length = sizeof BEFORE - 1 + digits + sizeof BEHIND - 1;
    put32(out, (uint32_t)length + 4);
    put32(out + 4, (uint32_t)length);
    memcpy(out + 8, BEFORE, sizeof BEFORE - 1);
    memcpy(out + 8 + sizeof BEFORE - 1, at, digits);
    memcpy(out + 8 + sizeof BEFORE - 1 + digits, BEHIND, sizeof BEHIND - 1);
    c->answered += 8 + length;
}

/* 0: the connection is gone. */
static int receive(struct connection *c, int fd)
{
    const ssize_t count = recv(fd, c->in + c->have, READ_BYTES, MSG_DONTWAIT);
    size_t at = 0;

    if (count <= 0)
        return 0;
    c->have += (size_t)count;
    c->out = realloc(c->out, (c->have / 64 + 1) * ANSWER_MAX);
    if (c->out == NULL)
        fail("realloc");
    while (c->have - at >= 8 && c->have - at >= 4 + (size_t)get32(c->in + at)) {
        take(c, c->in + at, get32(c->in + at));
        at += 4 + (size_t)get32(c->in + at);
    }
    memmove(c->in, c->in + at, c->have -= at);
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return fputs("usage: floor PORT FILE\n", stderr), 2;
    const int listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0), on = 1;
    const int file = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[64];
    int64_t end = 0;

    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (file < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 512)
        || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event))
        fail(argv[2]);
    puts("floor listens");
    fflush(stdout);
    for (;;) {
        const int ready = epoll_wait(epoll, events, 64, -1);
        stored = 0;
        for (int i = 0; i < ready; i++) {
            const int fd = events[i].data.fd;
            if (fd == listener) {
                const int peer = accept(listener, NULL, NULL);
                if (peer < 0 || peer >= CONNECTIONS_MAX)
                    fail("accept");
                setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                connections[peer] = calloc(1, sizeof *connections[peer]);
                event.data.fd = peer;
                if (connections[peer] == NULL || epoll_ctl(epoll, EPOLL_CTL_ADD, peer, &event))
                    fail("accept");
            } else if (!receive(connections[fd], fd)) {
                close(fd);
                free(connections[fd]->out);
                free(connections[fd]);
                connections[fd] = NULL;
            }
        }
        if (end + (int64_t)stored > FILE_BYTES)
            end = ftruncate(file, 0); /* as a new file of the log is: bytes that nobody has touched */
        if (stored && pwrite(file, store, stored, end) != (ssize_t)stored)
            fail("pwrite");
        end += (int64_t)stored;
        for (int i = 0; i < ready; i++) {
            struct connection *const c = events[i].data.fd == listener ? NULL : connections[events[i].data.fd];
            if (c != NULL && c->answered) {
                if (send(events[i].data.fd, c->out, c->answered, MSG_NOSIGNAL) != (ssize_t)c->answered
                    && errno != EPIPE && errno != ECONNRESET) /* a load that has ended wants no answers */
                    fail("send");
                c->answered = 0;
            }
        }
    }
}
