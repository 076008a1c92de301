// Runs a design with streams, cycle by cycle. A file made for the design includes this one and calls `run`.
//
// Standard input has a job, standard output gets its result; both are little-endian. See `Simulation.run`.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

template <size_t W> uint32_t *at(cxxrtl::value<W> &v) { return v.data; }
template <size_t W> uint32_t *at(cxxrtl::wire<W> &w) { return w.curr.data; }

struct Stream {
    uint32_t *payload, *valid, *ready;
    size_t bits, chunks;
    bool last() const { return payload[(bits - 1) / 32] >> (bits - 1) % 32 & 1; }  // the top bit
};
struct Memory { size_t fetch, words; };  // numbers of an output stream and of the input stream that answers it

struct Request { uint64_t ready; uint32_t address, count; };

static void take(void *into, size_t size) {
    if (size && fread(into, size, 1, stdin) != 1) { fprintf(stderr, "the job is too short\n"); exit(3); }
}
static uint64_t number() { uint64_t n; take(&n, 8); return n; }
static void give(const void *from, size_t size) { if (size) fwrite(from, size, 1, stdout); }

template <class Top>
int run(Top &top, std::vector<Stream> ins, std::vector<Stream> outs, std::vector<Memory> memories,
        std::vector<size_t> setup) {
    const uint64_t limit = number(), seed = number(), stall = number(), latency = number();
    std::vector<std::vector<uint32_t>> given(ins.size()), images(memories.size()), got(outs.size());
    std::vector<std::vector<uint64_t>> stamps(outs.size());
    std::vector<uint64_t> next(ins.size()), expected(outs.size()), came(outs.size());
    std::vector<int> memory_of(ins.size(), -1), requests_of(outs.size(), -1);
    std::vector<std::deque<Request>> requests(memories.size());
    for (size_t i = 0; i < memories.size(); i++) memory_of[memories[i].words] = requests_of[memories[i].fetch] = i;
    for (size_t i = 0; i < ins.size(); i++) {  // words of a stream, or the image of its memory
        auto &into = memory_of[i] < 0 ? given[i] : images[memory_of[i]];
        into.resize(number() * ins[i].chunks);
        take(into.data(), 4 * into.size());
    }
    std::vector<uint64_t> runs(outs.size());  // whether only words whose top bit is set are counted
    for (size_t i = 0; i < outs.size(); i++) { expected[i] = number(); runs[i] = number(); }
    std::mt19937_64 random(seed);
    auto stalled = [&] { return stall && random() % 1000 < stall; };
    std::vector<char> offering(ins.size());
    top.p_rst.template set<uint32_t>(1);
    for (int i = 0; i < 2; i++) {
        top.p_clk.template set<uint32_t>(0); top.step();
        top.p_clk.template set<uint32_t>(1); top.step();
    }
    top.p_rst.template set<uint32_t>(0);
    std::vector<char> early(ins.size());
    for (size_t i : setup) early[i] = 1;
    bool ready = setup.empty();
    uint64_t cycle = 0, before = 0;  // cycles count from the end of the set-up on
    for (;; cycle++) {
        if (!ready) {
            ready = true;
            for (size_t i : setup) ready &= next[i] * ins[i].chunks == given[i].size();
            before = cycle;
        }
        bool done = true;
        for (size_t i = 0; i < outs.size(); i++) done &= came[i] >= expected[i];
        if (done) break;
        if (cycle == limit) { fprintf(stderr, "no result after %llu cycles\n", (unsigned long long)cycle); return 4; }
        for (size_t i = 0; i < ins.size(); i++) {
            if (!offering[i] && (ready || early[i]) && !stalled()) {
                const uint32_t *word = nullptr;
                if (memory_of[i] < 0) {
                    if (next[i] * ins[i].chunks < given[i].size()) word = &given[i][next[i] * ins[i].chunks];
                } else {
                    auto &waiting = requests[memory_of[i]];
                    if (!waiting.empty() && waiting.front().ready <= cycle) {
                        auto &image = images[memory_of[i]];
                        if ((waiting.front().address + 1ull) * ins[i].chunks > image.size()) {
                            fprintf(stderr, "word %u is outside the memory\n", waiting.front().address);
                            return 5;
                        }
                        word = &image[waiting.front().address * ins[i].chunks];
                    }
                }
                if (word) { memcpy(ins[i].payload, word, 4 * ins[i].chunks); offering[i] = 1; }
            }
            *ins[i].valid = offering[i];
        }
        for (auto &out : outs) *out.ready = !stalled();
        top.p_clk.template set<uint32_t>(0); top.step();
        for (size_t i = 0; i < ins.size(); i++)
            if (offering[i] && *ins[i].ready) {
                offering[i] = 0;
                if (memory_of[i] < 0) next[i]++;
                else {
                    auto &waiting = requests[memory_of[i]];
                    waiting.front().address++;
                    if (--waiting.front().count == 0) waiting.pop_front();
                }
            }
        for (size_t i = 0; i < outs.size(); i++)
            if (*outs[i].valid && *outs[i].ready) {
                if (requests_of[i] < 0) {
                    got[i].insert(got[i].end(), outs[i].payload, outs[i].payload + outs[i].chunks);
                    stamps[i].push_back(cycle - before);
                    came[i] += !runs[i] || outs[i].last();
                } else if (outs[i].payload[1])
                    requests[requests_of[i]].push_back({cycle + latency, outs[i].payload[0], outs[i].payload[1]});
            }
        top.p_clk.template set<uint32_t>(1); top.step();
    }
    cycle -= before;
    give(&cycle, 8);
    for (size_t i = 0; i < outs.size(); i++) {
        const uint64_t count = stamps[i].size();
        give(&count, 8);
        give(got[i].data(), 4 * got[i].size());
        give(stamps[i].data(), 8 * count);
    }
    return 0;
}
