// A team of threads that runs one function together, with barriers inside it.
// Idle threads spin for a moment, then sleep. Knows nothing of what it runs.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace draftgraph {

class Team {
public:
    explicit Team(int num_threads);
    ~Team();
    Team(const Team&) = delete;
    Team& operator=(const Team&) = delete;

    // The team of so many threads, one for all who ask while it lives: two models that take turns have no need of threads twice,
    // which would only be in each other's way.
    static std::shared_ptr<Team> of(int num_threads);

    int size() const { return size_; }

    // Runs work(index) on every thread, the caller being index 0, and returns when all are done. `work` must not throw. Callers
    // wait for each other.
    void run(const std::function<void(int)>& work);

    // Inside `work`: waits until every thread is here.
    void sync();

private:
    void serve(int index);
    void make_room();

    int size_;
    std::vector<std::thread> threads_;
    std::function<void(int)> work_;
    std::atomic<uint64_t> round_{0};
    std::atomic<int> arrived_{0};
    std::atomic<uint64_t> phase_{0};
    std::atomic<bool> stop_{false};
    std::vector<std::atomic<int>> cores_;  // where each thread came to its last barrier
    std::mutex caller_;
    std::mutex mutex_;
    std::condition_variable wake_;
};

// The part [begin, end) of n items that thread `index` of `size` takes.
struct Share {
    int64_t begin;
    int64_t end;
    Share(int64_t n, int index, int size) : begin(n * index / size), end(n * (index + 1) / size) {}
};

// Hands out items on demand: a thread takes chunks of its own share, one after the other, and then of what is left of the others'.
// So nobody waits long for a thread that somebody else's program has stopped, or that memory serves more slowly. It does so
// `rounds` times between two calls of `begin`, with a barrier after each.
class Demand {
public:
    Demand(int size, int64_t rounds) : size_(size), stride_((rounds + kLine - 1) / kLine * kLine), taken_(static_cast<size_t>(size_ * stride_)) {}

    // Of every thread, before a barrier.
    void begin(int index) {
        for (int64_t i = 0; i < stride_; ++i) taken(index, i).store(0, std::memory_order_relaxed);
    }

    // Calls work(first, last) for chunks of the n items of a round, until all are taken.
    template <class Work> void run(int64_t round, int64_t n, int64_t chunk, int index, const Work& work) {
        for (int i = 0; i < size_; ++i) {
            const int owner = (index + i) % size_;
            const Share share(n, owner, size_);
            for (int64_t at; (at = share.begin + taken(owner, round).fetch_add(chunk, std::memory_order_relaxed)) < share.end;)
                work(at, at + chunk < share.end ? at + chunk : share.end);
        }
    }

private:
    static constexpr int64_t kLine = 8;  // counters in a cache line: no two threads have theirs in one

    std::atomic<int64_t>& taken(int owner, int64_t round) { return taken_[static_cast<size_t>(owner * stride_ + round)]; }

    int size_;
    int64_t stride_;
    std::vector<std::atomic<int64_t>> taken_;
};

}  // namespace draftgraph
