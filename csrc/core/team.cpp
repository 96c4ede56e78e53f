#include "core/team.hpp"

#include <chrono>
#include <map>
#if defined(__linux__)
#include <sched.h>
#endif

namespace draftgraph {
namespace {

constexpr auto kSpin = std::chrono::microseconds(1500);

void relax() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    std::this_thread::yield();
#endif
}

#if defined(__linux__)
int current_core() { return sched_getcpu(); }

// Moves this thread off `core`, to any other that it may run on.
void leave(int core) {
    cpu_set_t allowed, others;
    if (core < 0 || core >= CPU_SETSIZE || sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    others = allowed;
    CPU_CLR(static_cast<size_t>(core), &others);
    if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}
#else
int current_core() { return -1; }
void leave(int) {}
#endif

constexpr int kLong = 4000;  // rounds of spinning, some 50 microseconds; after 20 times that a thread yields

thread_local int own_index = 0;  // in the team it belongs to; a caller is number 0 of every team

}  // namespace

Team::Team(int num_threads) : size_(num_threads < 1 ? 1 : num_threads), cores_(static_cast<size_t>(size_)) {
    for (std::atomic<int>& core : cores_) core = -1;
    for (int i = 1; i < size_; ++i) threads_.emplace_back(&Team::serve, this, i);
}

std::shared_ptr<Team> Team::of(int num_threads) {
    static std::mutex mutex;
    static std::map<int, std::weak_ptr<Team>> teams;
    std::lock_guard<std::mutex> lock(mutex);
    std::shared_ptr<Team> team = teams[num_threads].lock();
    if (!team) teams[num_threads] = team = std::make_shared<Team>(num_threads);
    return team;
}

Team::~Team() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
}

void Team::run(const std::function<void(int)>& work) {
    std::lock_guard<std::mutex> turn(caller_);
    if (size_ > 1) {
        work_ = work;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            round_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
    }
    work(0);
    sync();
}

void Team::sync() {
    if (size_ == 1) return;
    cores_[static_cast<size_t>(own_index)].store(current_core(), std::memory_order_relaxed);
    const uint64_t phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == size_) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1, std::memory_order_release);
        return;
    }
    for (int i = 1; phase_.load(std::memory_order_acquire) == phase; ++i) {
        relax();
        if (i % kLong == 0) make_room();
        if (i > 20 * kLong) std::this_thread::yield();
    }
}

// Two threads of a team that were put on one core wait for each other's slices of time at every barrier, and the system may take
// long to part them, as both are always busy. The one that waits leaves.
void Team::make_room() {
    const int core = current_core();
    for (size_t i = 0; i < cores_.size(); ++i)
        if (static_cast<int>(i) != own_index && cores_[i].load(std::memory_order_relaxed) == core) return leave(core);
}

void Team::serve(int index) {
    own_index = index;
    uint64_t seen = 0;
    for (;;) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; round_.load(std::memory_order_acquire) == seen && !stop_; ++i) {
            relax();
            if (i % 256 == 255 && std::chrono::steady_clock::now() - start > kSpin) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, [&] { return round_.load(std::memory_order_acquire) != seen || stop_; });
            }
        }
        if (stop_) return;
        seen = round_.load(std::memory_order_acquire);
        work_(index);
        sync();
    }
}

}  // namespace draftgraph
