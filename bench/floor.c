/* The lower bound of the cost of a send on this machine. It receives bytes from sockets, splits them into frames,
 * writes as many bytes as their records would have to a file, and answers. It parses nothing but the opaque and keeps no queue
 * and no index. compare.py measures it as an upper bound: no broker that receives with recv, stores with pwrite, and
 * answers with send can be faster here.
 *
 *     floor PORT FILE     (JSON headers only; one thread; runs until it is killed)
 *
 * One recv takes up to 256 KiB of a connection. What all connections have sent since the last wait is written with one
 * pwrite, as the broker does; then each connection receives its replies with one send. */
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
#define BUFFER_BYTES (2 * READ_BYTES)
#define CONNECTIONS_MAX 4096
/* bytes of a record in addition to its body, as for the load generator's messages */
#define RECORD_OVERHEAD 156
#define FILE_BYTES ((int64_t)1 << 30)
#define REPLY_MAX 512

/* As long as a broker's reply to a send. The opaque goes between the two. */
static const char REPLY_HEAD[] =
    "{\"code\":0,\"extFields\":{\"queueId\":\"0\",\"MSG_REGION\":\"DefaultRegion\",\"msgId\":"
    "\"7F00000100002A9F0000000000000000\",\"TRACE_ON\":\"true\",\"queueOffset\":\"1234567\"},"
    "\"flag\":1,\"language\":\"JAVA\",\"opaque\":";
static const char REPLY_TAIL[] = ",\"serializeTypeCurrentRPC\":\"JSON\",\"version\":399}";

struct connection {
    size_t received, reply_bytes;
    uint8_t in[BUFFER_BYTES], *out;
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

/* Answer the request in a frame, and store the bytes of its body and those of the rest of a
 * record. */
static void answer(struct connection *c, const uint8_t *frame, size_t size)
{
    const size_t header = get32(frame + 4) & 0xFFFFFF, body = size - 4 - header;
    const char *at = memmem(frame + 8, header, "\"opaque\":", 9);
    size_t digits = 0;

    if (at == NULL || body + RECORD_OVERHEAD > sizeof store - stored)
        return;
    for (at += 9; at[digits] >= '0' && at[digits] <= '9'; digits++)
        ;
    memcpy(store + stored, frame, RECORD_OVERHEAD);
    memcpy(store + stored + RECORD_OVERHEAD, frame + 8 + header, body);
    stored += RECORD_OVERHEAD + body;
    uint8_t *const out = c->out + c->reply_bytes;
    const size_t length = sizeof REPLY_HEAD - 1 + digits + sizeof REPLY_TAIL - 1;
    put32(out, (uint32_t)length + 4);
    put32(out + 4, (uint32_t)length);
    memcpy(out + 8, REPLY_HEAD, sizeof REPLY_HEAD - 1);
    memcpy(out + 8 + sizeof REPLY_HEAD - 1, at, digits);
    memcpy(out + 8 + sizeof REPLY_HEAD - 1 + digits, REPLY_TAIL, sizeof REPLY_TAIL - 1);
    c->reply_bytes += 8 + length;
}

/* Receive once and answer the complete frames. Returns 0 if the connection has ended. */
static int receive(struct connection *c, int fd)
{
    const ssize_t count = recv(fd, c->in + c->received, READ_BYTES, MSG_DONTWAIT);
    size_t at = 0;

    if (count <= 0)
        return 0;
    c->received += (size_t)count;
    c->out = realloc(c->out, (c->received / 64 + 1) * REPLY_MAX);
    if (c->out == NULL)
        fail("realloc");
    while (c->received - at >= 8 && c->received - at >= 4 + (size_t)get32(c->in + at)) {
        answer(c, c->in + at, get32(c->in + at));
        at += 4 + (size_t)get32(c->in + at);
    }
    memmove(c->in, c->in + at, c->received -= at);
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
            end = ftruncate(file, 0); /* grow into untouched pages again, like a new log file */
        if (stored && pwrite(file, store, stored, end) != (ssize_t)stored)
            fail("pwrite");
        end += (int64_t)stored;
        for (int i = 0; i < ready; i++) {
            struct connection *const c = events[i].data.fd == listener ? NULL : connections[events[i].data.fd];
            if (c != NULL && c->reply_bytes) {
                if (send(events[i].data.fd, c->out, c->reply_bytes, MSG_NOSIGNAL) != (ssize_t)c->reply_bytes
                    && errno != EPIPE && errno != ECONNRESET) /* a load that has ended reads no replies */
                    fail("send");
                c->reply_bytes = 0;
            }
        }
    }
}
