/* Sends one request per connection and reads all answers to their end: a client that costs the machine next to nothing.

   stream_reader HOST PORT END FILE...
   sends each FILE over a connection of its own, at once, and reads until each connection has delivered END (\n and \r stand for
   line ends) or was closed. Then prints: seconds from the first byte sent to the last one read, bytes read, connections that
   delivered END. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_CONNECTIONS = 1024, TAIL = 64, BUFFER = 65536 };

struct connection {
    char tail[TAIL]; /* the last bytes read, since END may be cut by a read */
    size_t tail_size;
    int complete;
};

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static char *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file) fail(path);
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    char *data = malloc(*size);
    if (!data || fread(data, 1, *size, file) != *size) fail(path);
    fclose(file);
    return data;
}

static size_t unescape(const char *text, char *out) {
    size_t size = 0;
    for (; *text && size < TAIL; text++) {
        if (*text == '\\' && (text[1] == 'n' || text[1] == 'r')) {
            out[size++] = text[1] == 'n' ? '\n' : '\r';
            text++;
        } else {
            out[size++] = *text;
        }
    }
    return size;
}

static int connect_to(const char *host, const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(port))};
    int one = 1, handle = socket(AF_INET, SOCK_STREAM, 0);
    if (handle < 0 || inet_pton(AF_INET, host, &address.sin_addr) != 1) fail("socket");
    if (connect(handle, (struct sockaddr *)&address, sizeof address)) fail("connect");
    setsockopt(handle, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return handle;
}

static void send_all(int handle, const char *data, size_t size) {
    while (size) {
        ssize_t sent = send(handle, data, size, MSG_NOSIGNAL);
        if (sent <= 0) fail("send");
        data += sent;
        size -= (size_t)sent;
    }
}

/* Whether END has come. */
static int take(struct connection *self, const char *data, size_t size, const char *end, size_t end_size) {
    static char joined[TAIL + BUFFER];
    memcpy(joined, self->tail, self->tail_size);
    memcpy(joined + self->tail_size, data, size);
    size_t total = self->tail_size + size;
    if (memmem(joined, total, end, end_size)) return self->complete = 1;
    self->tail_size = total < end_size ? total : end_size - 1;
    memcpy(self->tail, joined + total - self->tail_size, self->tail_size);
    return 0;
}

int main(int argc, char **argv) {
    static struct pollfd handles[MAX_CONNECTIONS];
    static struct connection connections[MAX_CONNECTIONS];
    static char buffer[BUFFER], end[TAIL];
    int count = argc - 4, open = count, complete = 0;
    unsigned long long bytes = 0;
    if (count < 1 || count > MAX_CONNECTIONS) {
        fprintf(stderr, "usage: stream_reader HOST PORT END FILE...\n");
        return 2;
    }
    size_t end_size = unescape(argv[3], end);
    for (int i = 0; i < count; i++) handles[i] = (struct pollfd){connect_to(argv[1], argv[2]), POLLIN, 0};
    double start = now();
    for (int i = 0; i < count; i++) {
        size_t size;
        char *request = read_file(argv[4 + i], &size);
        send_all(handles[i].fd, request, size);
        free(request);
    }
    while (open) {
        if (poll(handles, (nfds_t)count, 120000) <= 0) fail("poll");
        for (int i = 0; i < count; i++) {
            if (!handles[i].revents) continue;
            ssize_t size = read(handles[i].fd, buffer, sizeof buffer);
            if (size > 0) bytes += (unsigned long long)size;
            if (size <= 0 || take(&connections[i], buffer, (size_t)size, end, end_size)) {
                complete += connections[i].complete;
                close(handles[i].fd);
                handles[i] = (struct pollfd){-1, 0, 0};
                open--;
            }
        }
    }
    printf("%.6f %llu %d\n", now() - start, bytes, complete);
    return 0;
}
