/* A pool of threads that take numbered tasks, one after the other, until none is left. */
#ifndef EDGE_THREADS_H
#define EDGE_THREADS_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

struct pool {
    int threads; /* the caller included */
    int level;
    const struct instructions *set;
    pthread_t *workers;
    pthread_mutex_t mutex;
    pthread_cond_t begun, ended;
    pid_t process; /* a forked child has the pool but not its threads */
    long turn; /* counts calls of `spread` */
    int busy;  /* workers that have not finished this turn */
    int closing;
    task_function function;
    void *context;
    long tasks;
    atomic_long next;
};

struct worker {
    struct pool *pool;
    int thread;
};

static void take_tasks(struct pool *pool, int thread) {
    long task = atomic_fetch_add(&pool->next, 1);
    if (task >= pool->tasks) return;
    if (pool->set->begin) pool->set->begin(pool->level);
    for (; task < pool->tasks; task = atomic_fetch_add(&pool->next, 1)) pool->function(pool->context, task, thread);
    if (pool->set->end) pool->set->end(pool->level);
}

static void *work(void *argument) {
    struct worker worker = *(struct worker *)argument;
    struct pool *pool = worker.pool;
    long seen = 0;
    sigset_t signals;
    free(argument);
    sigfillset(&signals); /* they are for the threads of the program */
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (pool->turn == seen && !pool->closing) pthread_cond_wait(&pool->begun, &pool->mutex);
        if (pool->closing) break;
        seen = pool->turn;
        pthread_mutex_unlock(&pool->mutex);
        take_tasks(pool, worker.thread);
        pthread_mutex_lock(&pool->mutex);
        if (--pool->busy == 0) pthread_cond_signal(&pool->ended);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

/* Runs `function` for the tasks 0 ... tasks - 1 on all threads, and returns when all are done. */
static void spread(struct pool *pool, task_function function, void *context, long tasks) {
    int helped = pool->threads > 1 && tasks > 1 && getpid() == pool->process;
    pool->function = function, pool->context = context, pool->tasks = tasks;
    atomic_store(&pool->next, 0);
    if (helped) {
        pthread_mutex_lock(&pool->mutex);
        pool->busy = pool->threads - 1;
        pool->turn++;
        pthread_cond_broadcast(&pool->begun);
        pthread_mutex_unlock(&pool->mutex);
    }
    take_tasks(pool, 0);
    if (!helped) return;
    pthread_mutex_lock(&pool->mutex);
    while (pool->busy) pthread_cond_wait(&pool->ended, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

static void pool_close(struct pool *pool) {
    if (getpid() != pool->process) return;
    pthread_mutex_lock(&pool->mutex);
    pool->closing = 1;
    pthread_cond_broadcast(&pool->begun);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->threads - 1; i++) pthread_join(pool->workers[i], NULL);
    pthread_mutex_destroy(&pool->mutex);
    pthread_cond_destroy(&pool->begun);
    pthread_cond_destroy(&pool->ended);
    free(pool->workers);
    free(pool);
}

/* NULL if the system gives no memory. Threads that it does not start are done without. */
static struct pool *pool_open(int threads, int level, const struct instructions *set) {
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool || !(pool->workers = calloc(threads, sizeof *pool->workers))) {
        free(pool);
        return NULL;
    }
    pool->threads = 1, pool->level = level, pool->set = set, pool->process = getpid();
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->begun, NULL);
    pthread_cond_init(&pool->ended, NULL);
    while (pool->threads < threads) {
        struct worker *worker = malloc(sizeof *worker);
        if (!worker) break;
        worker->pool = pool, worker->thread = pool->threads;
        if (pthread_create(&pool->workers[pool->threads - 1], NULL, work, worker)) {
            free(worker);
            break;
        }
        pool->threads++;
    }
    return pool;
}

#endif
