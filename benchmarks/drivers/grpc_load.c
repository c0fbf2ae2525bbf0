/* Sends unary gRPC calls over plain HTTP/2 as fast as they are answered, one at a time on each of
 * several connections, and tells how many were.
 *
 *     grpc_load HOST PORT METHOD MESSAGES CONNECTIONS WARM_UP_S SECONDS
 *
 * MESSAGES is a file of serialised requests, each behind its length (uint32, little-endian). They
 * are sent in turn, over all connections together. h2load, which this stands in for, sends one body
 * again and again. Just enough of HTTP/2 for that: one thread, no TLS, headers of answers unread. An
 * answer counts when it brought a message and ended by trailers; the caller judges the bytes.
 * Prints one line of JSON. Exit status 1 with a line on stderr when the connection fails.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { DATA = 0, HEADERS = 1, RST_STREAM = 3, SETTINGS = 4, PING = 6, GOAWAY = 7, WINDOW_UPDATE = 8 };
enum { END_STREAM = 1, ACK = 1, END_HEADERS = 4 };
enum { HEAD = 9, FRAME_MAX = 16384, BUFFER = 1 << 20, WINDOW = 1 << 30 };

typedef struct {
    uint8_t *frame; /* a DATA frame, its stream still to be filled in */
    size_t size;
} Message;

typedef struct {
    int fd;
    uint32_t stream;    /* of the call under way */
    int64_t may_send;   /* what the server's window of the connection leaves */
    int64_t unreturned; /* bytes of answers for which no window was given back yet */
    int waiting;        /* the call waits for window */
    uint64_t bytes; /* of the answer so far */
    size_t used;
    uint8_t buffer[BUFFER];
} Connection;

static Message *messages;
static size_t message_count, next_message;
static uint8_t first_headers[1024], later_headers[64];
static size_t first_size, later_size;
static int measuring;
static uint64_t answers, failed, bytes_least = UINT64_MAX;

static void die(const char *what) {
    fprintf(stderr, "grpc_load: %s%s%s\n", what, errno ? ": " : "", errno ? strerror(errno) : "");
    exit(1);
}

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void put32(uint8_t *to, uint32_t value) {
    to[0] = value >> 24, to[1] = value >> 16, to[2] = value >> 8, to[3] = value;
}

static uint32_t get32(const uint8_t *from) {
    return (uint32_t)from[0] << 24 | from[1] << 16 | from[2] << 8 | from[3];
}

static void head(uint8_t *to, size_t length, int type, int flags, uint32_t stream) {
    to[0] = length >> 16, to[1] = length >> 8, to[2] = length;
    to[3] = type, to[4] = flags;
    put32(to + 5, stream);
}

static void send_all(Connection *c, const uint8_t *data, size_t size) {
    while (size) {
        ssize_t n = send(c->fd, data, size, MSG_NOSIGNAL);
        if (n > 0) {
            data += n, size -= n;
        } else if (n < 0 && errno == EAGAIN) {
            struct pollfd p = {c->fd, POLLOUT, 0};
            poll(&p, 1, 1000);
        } else if (n >= 0 || errno != EINTR) {
            die("the server closed a connection");
        }
    }
}

/* -- headers (HPACK, RFC 7541) -------------------------------------------------------------- */

static uint8_t *text(uint8_t *to, const char *value) {
    size_t length = strlen(value);
    if (length > 126) die("a header is too long");
    *to++ = length;
    memcpy(to, value, length);
    return to + length;
}

/* The first call of a connection brings its headers into the table, in this order; the later ones
 * name their places, as clients do. */
static void make_headers(const char *method, const char *authority) {
    uint8_t *p = first_headers + HEAD;
    *p++ = 0x83, *p++ = 0x86; /* :method POST, :scheme http */
    *p++ = 0x44, p = text(p, method);
    *p++ = 0x41, p = text(p, authority);
    *p++ = 0x5f, p = text(p, "application/grpc");
    *p++ = 0x40, p = text(p, "te"), p = text(p, "trailers");
    first_size = p - first_headers;
    p = later_headers + HEAD;
    *p++ = 0x83, *p++ = 0x86;
    for (int place = 65; place >= 62; place--) *p++ = 0x80 | place;
    later_size = p - later_headers;
}

/* -- calls ---------------------------------------------------------------------------------- */

static void call(Connection *c) {
    Message *m = &messages[next_message];
    if (c->may_send < (int64_t)m->size) {
        c->waiting = 1;
        return;
    }
    next_message = (next_message + 1) % message_count;
    c->waiting = 0;
    c->stream += 2;
    c->may_send -= m->size - HEAD;
    c->bytes = 0;
    uint8_t out[1024 + HEAD + FRAME_MAX];
    int first = c->stream == 1;
    size_t size = first ? first_size : later_size;
    memcpy(out, first ? first_headers : later_headers, size);
    head(out, size - HEAD, HEADERS, END_HEADERS, c->stream);
    memcpy(out + size, m->frame, m->size);
    put32(out + size + 5, c->stream);
    send_all(c, out, size + m->size);
}

static void ended(Connection *c, int whole) {
    if (measuring) {
        if (whole && c->bytes) {
            answers++;
            if (c->bytes < bytes_least) bytes_least = c->bytes;
        } else {
            failed++;
        }
    }
    call(c);
}

static void take(Connection *c, const uint8_t *frame, size_t length) {
    int type = frame[3], flags = frame[4];
    const uint8_t *body = frame + HEAD;
    uint8_t out[HEAD + 8];
    uint32_t stream = get32(frame + 5) & 0x7fffffff;
    if (stream && stream != c->stream) return; /* of a call that has ended */
    switch (type) {
    case DATA:
        c->bytes += length;
        c->unreturned += length;
        if (c->unreturned > WINDOW / 2) {
            head(out, 4, WINDOW_UPDATE, 0, 0);
            put32(out + HEAD, c->unreturned);
            send_all(c, out, HEAD + 4);
            c->unreturned = 0;
        }
        if (flags & END_STREAM) ended(c, 0);
        break;
    case HEADERS:
        if (flags & END_STREAM) ended(c, 1);
        break;
    case RST_STREAM:
        ended(c, 0);
        break;
    case SETTINGS:
        if (flags & ACK) break;
        head(out, 0, SETTINGS, ACK, 0);
        send_all(c, out, HEAD);
        break;
    case PING:
        if (flags & ACK) break;
        head(out, 8, PING, ACK, 0);
        memcpy(out + HEAD, body, 8);
        send_all(c, out, HEAD + 8);
        break;
    case GOAWAY:
        errno = 0;
        die("the server ends a connection");
        break;
    case WINDOW_UPDATE:
        if (!stream) c->may_send += get32(body) & 0x7fffffff;
        if (c->waiting) call(c);
        break;
    }
}

static void readable(Connection *c) {
    ssize_t n = recv(c->fd, c->buffer + c->used, BUFFER - c->used, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) die("the server closed a connection");
    c->used += n;
    size_t at = 0;
    while (c->used - at >= HEAD) {
        const uint8_t *frame = c->buffer + at;
        size_t length = frame[0] << 16 | frame[1] << 8 | frame[2];
        if (c->used - at < HEAD + length) break;
        take(c, frame, length);
        at += HEAD + length;
    }
    memmove(c->buffer, c->buffer + at, c->used - at);
    c->used -= at;
}

static void open_connection(Connection *c, const char *host, int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1) die("HOST is not an IPv4 address");
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&to, sizeof to)) die("cannot connect");
    int one = 1;
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    c->stream = (uint32_t)-1;
    c->may_send = 65535;
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    uint8_t out[64];
    size_t size = sizeof preface - 1;
    memcpy(out, preface, size);
    head(out + size, 6, SETTINGS, 0, 0);
    out[size + HEAD] = 0, out[size + HEAD + 1] = 4; /* INITIAL_WINDOW_SIZE */
    put32(out + size + HEAD + 2, WINDOW);
    size += HEAD + 6;
    head(out + size, 4, WINDOW_UPDATE, 0, 0);
    put32(out + size + HEAD, WINDOW);
    send_all(c, out, size + HEAD + 4);
}

static void read_messages(const char *path) {
    FILE *file = fopen(path, "rb");
    if (!file) die(path);
    size_t room = 0;
    uint8_t length[4];
    while (fread(length, 1, 4, file) == 4) {
        uint32_t size = length[0] | length[1] << 8 | length[2] << 16 | (uint32_t)length[3] << 24;
        if (size + 5 > FRAME_MAX) die("a message does not fit into a frame of 16384 bytes");
        if (message_count == room) {
            room = room ? 2 * room : 1024;
            messages = realloc(messages, room * sizeof *messages);
        }
        Message *m = &messages[message_count++];
        m->size = HEAD + 5 + size;
        m->frame = malloc(m->size);
        head(m->frame, 5 + size, DATA, END_STREAM, 0);
        m->frame[HEAD] = 0; /* not compressed */
        put32(m->frame + HEAD + 1, size);
        if (fread(m->frame + HEAD + 5, 1, size, file) != size) die("MESSAGES ends too early");
    }
    fclose(file);
    if (!message_count) die("MESSAGES is empty");
}

int main(int count, char **given) {
    if (count != 8) die("HOST PORT METHOD MESSAGES CONNECTIONS WARM_UP_S SECONDS");
    int connection_count = atoi(given[5]);
    double warm_up = atof(given[6]), seconds = atof(given[7]);
    char authority[64];
    snprintf(authority, sizeof authority, "%s:%s", given[1], given[2]);
    make_headers(given[3], authority);
    read_messages(given[4]);
    int queue = epoll_create1(0);
    Connection *all = calloc(connection_count, sizeof *all);
    for (int i = 0; i < connection_count; i++) {
        open_connection(&all[i], given[1], atoi(given[2]));
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(queue, EPOLL_CTL_ADD, all[i].fd, &event);
    }
    for (int i = 0; i < connection_count; i++) call(&all[i]);
    int64_t began = now_us(), from = began + warm_up * 1e6, until = from + seconds * 1e6, now;
    while ((now = now_us()) < until) {
        if (!measuring && now >= from) measuring = 1, from = now;
        struct epoll_event events[64];
        int ready = epoll_wait(queue, events, 64, 100);
        for (int i = 0; i < ready; i++) readable(events[i].data.ptr);
    }
    printf("{\"seconds\": %.6f, \"answers\": %lu, \"failed\": %lu, \"bytes_least\": %lu}\n",
           (now - from) / 1e6, answers, failed, answers ? bytes_least : 0);
    return 0;
}
