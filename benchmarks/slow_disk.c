/* A slow disk: mirrors a folder, read-only, and adds a delay to each read.
 *
 *     slow_disk FOLDER MOUNT_POINT
 *
 * The server speaks the FUSE protocol of linux/fuse.h itself. Every way of reading gets the delay:
 * page faults of maps, read-ahead, preadv, and O_DIRECT with Linux AIO. Delays run in parallel, any
 * number at a time. The files are mapped and read into memory at the start, so a read takes the
 * delay and a copy, nothing else. Folders and attributes are never delayed.
 *
 * It prints "ready" and then obeys lines of standard input:
 *
 *     start N   drop all pages of the mirror, also those that are mapped and used; from now on
 *               delay by N microseconds and keep a log; answers "started"
 *     stop      answers with the number of reads since, and a line for each: the times at which it
 *               came and was answered (ns, monotonic clock), file number, offset, bytes
 *
 * When the input ends, it unmounts the mirror and exits.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { RECEIVERS = 2, REPLIERS = 4, REQUEST_BYTES = 1 << 17, FOREVER = 1 << 30 };

/* A file or folder. Its FUSE number is its position in `nodes`, plus 1: the root's is 1. */
struct node {
    uint64_t parent;
    char *name;
    struct stat stat;
    char *data; /* of a file: its map */
};

struct read_request {
    uint64_t unique, node, offset, size;
    int64_t came, answered;
};

static struct node *nodes;
static uint64_t node_count;
static int device;

/* The queue is reads[next_read] and those after it, in the order in which they came and are due.
 * Those before it are the log. `lock` protects all of these. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t has_read = PTHREAD_COND_INITIALIZER, is_idle = PTHREAD_COND_INITIALIZER;
static struct read_request *reads;
static size_t read_count, next_read, read_room, done_count;
static int64_t delay_ns;

static void die(const char *format, ...) {
    va_list rest;
    va_start(rest, format);
    fprintf(stderr, "slow_disk: ");
    vfprintf(stderr, format, rest);
    fprintf(stderr, ": %s\n", strerror(errno));
    va_end(rest);
    exit(1);
}

static void *grown(void *memory, size_t bytes) {
    memory = realloc(memory, bytes);
    if (!memory) die("%zu bytes", bytes);
    return memory;
}

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

/* ---------------------------------------------------------------------------------------- files */

/* Add a file or folder and everything in it. The tree does not change afterwards. */
static void add(uint64_t parent, const char *name, const char *path) {
    struct node node = {.parent = parent, .name = strdup(name)};
    if (stat(path, &node.stat)) die("%s", path);
    if (S_ISREG(node.stat.st_mode) && node.stat.st_size) {
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) die("%s", path);
        node.data = mmap(NULL, node.stat.st_size, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
        if (node.data == MAP_FAILED) die("mmap of %s", path);
        close(file);
    }
    nodes = grown(nodes, (node_count + 1) * sizeof *nodes);
    nodes[node_count++] = node;
    uint64_t self = node_count;
    if (!S_ISDIR(node.stat.st_mode)) return;
    DIR *folder = opendir(path);
    if (!folder) die("%s", path);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char inner[4096];
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        if (snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= (int)sizeof inner)
            errno = ENAMETOOLONG, die("%s", path);
        add(self, entry->d_name, inner);
    }
    closedir(folder);
}

static struct fuse_attr attributes(uint64_t number) {
    const struct stat *stat = &nodes[number - 1].stat;
    return (struct fuse_attr){
        .ino = number,
        .size = stat->st_size,
        .blocks = stat->st_blocks,
        .mtime = stat->st_mtim.tv_sec,
        .mtimensec = stat->st_mtim.tv_nsec,
        .mode = stat->st_mode,
        .nlink = stat->st_nlink,
        .uid = stat->st_uid,
        .gid = stat->st_gid,
        .blksize = stat->st_blksize,
    };
}

/* -------------------------------------------------------------------------------------- answers */

/* Answer a request: with -error, or with `size` bytes. */
static void answer(uint64_t unique, int error, const void *data, size_t size) {
    struct fuse_out_header head = {sizeof head + size, -error, unique};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)data, size}};
    /* ENOENT: nobody waits for it any more, because the reader was killed. */
    if (writev(device, parts, size ? 2 : 1) < 0 && errno != ENOENT && errno != ENODEV)
        die("answer to /dev/fuse");
}

static void answer_init(uint64_t unique, const struct fuse_init_in *asked) {
    uint32_t wanted =
        FUSE_ASYNC_READ | FUSE_ASYNC_DIO | FUSE_MAX_PAGES | FUSE_PARALLEL_DIROPS |
        FUSE_NO_OPEN_SUPPORT | FUSE_NO_OPENDIR_SUPPORT;
    struct fuse_init_out found = {
        .major = FUSE_KERNEL_VERSION,
        .minor = FUSE_KERNEL_MINOR_VERSION,
        .max_readahead = asked->max_readahead,
        .flags = asked->flags & wanted,
        .max_background = UINT16_MAX,
        .congestion_threshold = UINT16_MAX,
        .max_write = 4096,
        .time_gran = 1,
        .max_pages = UINT16_MAX, /* the kernel's limit is lower: fs.fuse.max_pages_limit */
    };
    answer(unique, 0, &found, sizeof found);
}

static void answer_lookup(uint64_t unique, uint64_t parent, const char *name) {
    for (uint64_t number = 2; number <= node_count; number++) {
        const struct node *node = &nodes[number - 1];
        if (node->parent != parent || strcmp(node->name, name)) continue;
        struct fuse_entry_out found = {
            .nodeid = number,
            .entry_valid = FOREVER,
            .attr_valid = FOREVER,
            .attr = attributes(number),
        };
        answer(unique, 0, &found, sizeof found);
        return;
    }
    answer(unique, ENOENT, NULL, 0);
}

/* The offset of an entry is the number of the node after it. */
static void answer_folder(uint64_t unique, uint64_t parent, const struct fuse_read_in *asked) {
    char data[4096];
    size_t used = 0;
    for (uint64_t number = asked->offset ? asked->offset : 2; number <= node_count; number++) {
        const struct node *node = &nodes[number - 1];
        if (node->parent != parent) continue;
        size_t length = strlen(node->name), size = FUSE_DIRENT_ALIGN(FUSE_NAME_OFFSET + length);
        if (used + size > sizeof data || used + size > asked->size) break;
        struct fuse_dirent *entry = (void *)(data + used);
        memset(entry, 0, size);
        entry->ino = number;
        entry->off = number + 1;
        entry->namelen = length;
        entry->type = (node->stat.st_mode & S_IFMT) >> 12;
        memcpy(entry->name, node->name, length);
        used += size;
    }
    answer(unique, 0, data, used);
}

/* ---------------------------------------------------------------------------------------- reads */

static void queue_read(uint64_t unique, uint64_t node, const struct fuse_read_in *asked) {
    pthread_mutex_lock(&lock);
    if (read_count == read_room) {
        read_room = read_room ? 2 * read_room : 1024;
        reads = grown(reads, read_room * sizeof *reads);
    }
    reads[read_count++] =
        (struct read_request){unique, node, asked->offset, asked->size, now(), 0};
    pthread_cond_signal(&has_read);
    pthread_mutex_unlock(&lock);
}

/* Take the next read, wait until it is due, answer it. All have the same delay: they are due in the
 * order of the queue, and a few threads serve any number of them. */
static void *reply(void *unused) {
    for (;;) {
        pthread_mutex_lock(&lock);
        while (next_read == read_count) pthread_cond_wait(&has_read, &lock);
        size_t place = next_read++;
        struct read_request read = reads[place];
        int64_t due = read.came + delay_ns;
        pthread_mutex_unlock(&lock);

        struct timespec until = {due / 1000000000, due % 1000000000};
        if (due > now()) clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
        const struct node *node = &nodes[read.node - 1];
        uint64_t size = node->stat.st_size, count = read.size;
        if (read.offset >= size) count = 0;
        else if (count > size - read.offset) count = size - read.offset;
        int64_t answered = now(); /* before its reader can ask for the next one */
        answer(read.unique, 0, node->data + read.offset, count);

        pthread_mutex_lock(&lock);
        reads[place].answered = answered;
        if (++done_count == read_count) pthread_cond_signal(&is_idle);
        pthread_mutex_unlock(&lock);
    }
    return unused;
}

static void obey(uint64_t unique, uint32_t code, uint64_t node, const void *body) {
    switch (code) {
    case FUSE_INIT: answer_init(unique, body); break;
    case FUSE_LOOKUP: answer_lookup(unique, node, body); break;
    case FUSE_READDIR: answer_folder(unique, node, body); break;
    case FUSE_READ: queue_read(unique, node, body); break;
    case FUSE_GETATTR: {
        struct fuse_attr_out found = {.attr_valid = FOREVER, .attr = attributes(node)};
        answer(unique, 0, &found, sizeof found);
        break;
    }
    case FUSE_STATFS: {
        struct fuse_statfs_out found = {{.bsize = 4096, .frsize = 4096, .namelen = 255}};
        answer(unique, 0, &found, sizeof found);
        break;
    }
    case FUSE_FORGET: case FUSE_BATCH_FORGET: case FUSE_INTERRUPT: break; /* have no answer */
    case FUSE_DESTROY: answer(unique, 0, NULL, 0); break;
    default: answer(unique, ENOSYS, NULL, 0); /* the kernel's defaults, also for opening */
    }
}

static void *receive(void *unused) {
    char *request = grown(NULL, REQUEST_BYTES);
    for (;;) {
        ssize_t size = read(device, request, REQUEST_BYTES);
        if (size < 0 && errno == ENODEV) return unused; /* unmounted */
        if (size < 0 && (errno == EINTR || errno == ENOENT || errno == EAGAIN)) continue;
        if (size < 0) die("/dev/fuse");
        const struct fuse_in_header *head = (void *)request;
        obey(head->unique, head->opcode, head->nodeid, head + 1);
    }
}

/* ------------------------------------------------------------------------------------- commands */

static void wait_until_idle(void) {
    while (done_count < read_count) pthread_cond_wait(&is_idle, &lock);
}

static void drop_pages(void) {
    for (uint64_t number = 1; number <= node_count; number++) {
        if (!nodes[number - 1].data) continue;
        struct fuse_notify_inval_inode_out range = {.ino = number, .off = 0, .len = 0};
        struct fuse_out_header head = {sizeof head + sizeof range, FUSE_NOTIFY_INVAL_INODE, 0};
        struct iovec parts[] = {{&head, sizeof head}, {&range, sizeof range}};
        /* ENOENT: the kernel does not know the file yet. */
        if (writev(device, parts, 2) < 0 && errno != ENOENT) die("dropping pages");
    }
}

static void start(int64_t microseconds) {
    drop_pages();
    pthread_mutex_lock(&lock);
    wait_until_idle();
    read_count = next_read = done_count = 0;
    delay_ns = microseconds * 1000;
    pthread_mutex_unlock(&lock);
    puts("started");
}

static void stop(void) {
    pthread_mutex_lock(&lock);
    wait_until_idle();
    printf("%zu\n", read_count);
    for (size_t k = 0; k < read_count; k++)
        printf("%lld %lld %llu %llu %llu\n", (long long)reads[k].came,
               (long long)reads[k].answered, (unsigned long long)reads[k].node,
               (unsigned long long)reads[k].offset, (unsigned long long)reads[k].size);
    pthread_mutex_unlock(&lock);
}

static void run(void *(*function)(void *)) {
    pthread_t thread;
    if ((errno = pthread_create(&thread, NULL, function, NULL))) die("pthread_create");
}

int main(int count, char **arguments) {
    if (count != 3) {
        fprintf(stderr, "usage: slow_disk FOLDER MOUNT_POINT\n");
        return 2;
    }
    const char *folder = arguments[1], *mount_point = arguments[2];
    signal(SIGINT, SIG_IGN); /* the end of the input ends it, also if its parent was killed */
    signal(SIGTERM, SIG_IGN);
    /* Like a disk, it is not kept waiting by programs that compute. */
    if (sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){.sched_priority = 1}))
        perror("slow_disk: no real-time priority, so delays may be longer on a busy machine");
    add(0, "", folder);
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0) die("/dev/fuse");
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=%o,user_id=%d,group_id=%d,allow_other",
             device, nodes[0].stat.st_mode & S_IFMT, getuid(), getgid());
    unsigned long flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOATIME;
    if (mount("slow_disk", mount_point, "fuse.slow_disk", flags, options))
        die("mounting %s needs root", mount_point);
    for (int k = 0; k < RECEIVERS; k++) run(receive);
    for (int k = 0; k < REPLIERS; k++) run(reply);
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "start ", 6)) start(atoll(line + 6));
        else if (!strcmp(line, "stop\n")) stop();
        fflush(stdout);
    }
    if (umount2(mount_point, MNT_DETACH)) die("unmounting %s", mount_point);
    return 0;
}
