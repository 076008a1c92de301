// One layer of an encoder, for packed sequences. All arithmetic is float32; int8 products are exact integers.
//
// Weights are one buffer, with a tensor at each byte that a constant names. What a row becomes depends on that row's
// sequence alone, in an order that no other row changes.

override K: u32 = 1u;          // inputs of a product, or components of a row
override N: u32 = 1u;          // outputs of a product
override WEIGHT: u32 = 0u;     // bytes where tensors begin
override BIAS: u32 = 0u;
override SCALE: u32 = 0u;
override PRECISION: u32 = 0u;  // of the matrix: 0 fp32, 1 fp16, 2 int8
override ACTIVATION: u32 = 0u; // 0 none, 1 gelu, 2 gelu with tanh, 3 relu, 4 silu
override EPSILON: f32 = 0.0;
override HALF: bool = false;      // states are stored in half precision
override STORE: bool = false;     // a norm's result is the layer's
override HEADS: u32 = 1u;
override KV_HEADS: u32 = 1u;
override HEAD: u32 = 1u;       // components of a head, at most 128

const TILE = 32u;         // rows and columns of a product's tile
const DEPTH = 16u;        // inputs that a tile takes at a time
const EXACT = 1024u;      // products of int8 that float32 sums exactly
const QUERIES = 8u;
const KEYS = 16u;
const NONE = -3.4e38;

struct Chunk { tokens: u32, row: u32 }                 // tokens, and the first one's row in the states
struct Tile { query: u32, queries: u32, key: u32, end: u32 }
struct Rows { first: u32, count: u32 }

@group(0) @binding(0) var<uniform> chunk: Chunk;
@group(0) @binding(1) var<storage, read> weights: array<u32>;
@group(0) @binding(2) var<storage, read_write> states: array<u32>;
@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read> added: array<f32>;
@group(0) @binding(6) var<storage, read_write> scales: array<f32>;
@group(0) @binding(7) var<storage, read> tiles: array<Tile>;
@group(0) @binding(8) var<storage, read> rows: array<Rows>;

fn number(at: u32, i: u32) -> f32 {
    return bitcast<f32>(weights[(at >> 2u) + i]);
}

fn matrix(i: u32) -> f32 {
    if PRECISION == 0u {
        return number(WEIGHT, i);
    }
    if PRECISION == 1u {
        let at = WEIGHT + 2u * i;
        return unpack2x16float(weights[at >> 2u] >> (8u * (at & 2u))).x;
    }
    let at = WEIGHT + i;
    return f32(bitcast<i32>(weights[at >> 2u] << (24u - 8u * (at & 3u))) >> 24u);
}

fn state(i: u32) -> f32 {
    if HALF {
        let pair = unpack2x16float(states[i >> 1u]);
        return select(pair.x, pair.y, (i & 1u) == 1u);
    }
    return bitcast<f32>(states[i]);
}

// The states as float32.
@compute @workgroup_size(64)
fn enter(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
    for (var i = thread; i < K; i += 64u) {
        y[group.x * K + i] = state((chunk.row + group.x) * K + i);
    }
}

// 1 - 1 / (1 + p1 x + ... + p6 x^6)^16 has an error of 3e-7 (Abramowitz and Stegun, 7.1.28).
fn erf(value: f32) -> f32 {
    let v = abs(value);
    var p = 1.0 + v * (0.0705230784 + v * (0.0422820123 + v * (0.0092705272 + v * (0.0001520143
        + v * (0.0002765672 + v * 0.0000430638)))));
    p = p * p;
    p = p * p;
    p = p * p;
    p = min(p * p, 1e30);
    return sign(value) * (1.0 - 1.0 / p);
}

fn activated(value: f32) -> f32 {
    switch ACTIVATION {
        case 1u: { return 0.5 * value * (1.0 + erf(value * 0.70710678)); }
        case 2u: {
            let bent = 0.7978845608 * (value + 0.044715 * value * value * value);
            return 0.5 * value * (1.0 + tanh(clamp(bent, -15.0, 15.0)));
        }
        case 3u: { return max(value, 0.0); }
        case 4u: { return value / (1.0 + exp(clamp(-value, -80.0, 80.0))); }
        default: { return value; }
    }
}

var<workgroup> parts: array<f32, 64>;

fn total(value: f32, thread: u32) -> f32 {
    parts[thread] = value;
    workgroupBarrier();
    for (var width = 32u; width > 0u; width >>= 1u) {
        if thread < width {
            parts[thread] += parts[thread + width];
        }
        workgroupBarrier();
    }
    let sum = parts[0];
    workgroupBarrier();
    return sum;
}

// The scale of each row for int8: max|x| / 127.
@compute @workgroup_size(64)
fn row_scales(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
    var most = 1e-30;
    for (var i = thread; i < K; i += 64u) {
        most = max(most, abs(x[group.x * K + i]));
    }
    parts[thread] = most;
    workgroupBarrier();
    if thread == 0u {
        for (var i = 1u; i < 64u; i++) {
            most = max(most, parts[i]);
        }
        scales[group.x] = most / 127.0;
    }
}

var<workgroup> left: array<f32, 512>;      // [TILE, DEPTH]
var<workgroup> right: array<vec4f, 128>;   // [DEPTH, TILE / 4]

// y = activation(x @ matrix + bias). A thread computes 4 x 4 values of a tile of 32 x 32.
@compute @workgroup_size(8, 8)
fn product(
    @builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) own: vec3u,
    @builtin(local_invocation_index) thread: u32
) {
    let first = group.y * TILE;
    let column = group.x * TILE;
    var sums: array<vec4f, 4>;
    var whole: array<vec4i, 4>;
    for (var depth = 0u; depth < K; depth += DEPTH) {
        for (var i = thread; i < TILE * DEPTH; i += 64u) {
            let row = first + i / DEPTH;
            let k = depth + i % DEPTH;
            var value = 0.0;
            if row < chunk.tokens && k < K {
                value = x[row * K + k];
                if PRECISION == 2u {
                    value = round(value / scales[row]);
                }
            }
            left[i] = value;
        }
        for (var i = thread; i < DEPTH * TILE / 4u; i += 64u) {
            let k = depth + i / (TILE / 4u);
            let n = column + 4u * (i % (TILE / 4u));
            var values = vec4f();
            for (var j = 0u; j < 4u; j++) {
                if k < K && n + j < N {
                    values[j] = matrix(k * N + n + j);
                }
            }
            right[i] = values;
        }
        workgroupBarrier();
        for (var k = 0u; k < DEPTH; k++) {
            let values = right[k * (TILE / 4u) + own.x];
            for (var i = 0u; i < 4u; i++) {
                sums[i] += left[(4u * own.y + i) * DEPTH + k] * values;
            }
        }
        workgroupBarrier();
        if PRECISION == 2u && ((depth + DEPTH) % EXACT == 0u || depth + DEPTH >= K) {
            for (var i = 0u; i < 4u; i++) {
                whole[i] += vec4i(sums[i]);
                sums[i] = vec4f();
            }
        }
    }
    for (var i = 0u; i < 4u; i++) {
        let row = first + 4u * own.y + i;
        for (var j = 0u; j < 4u; j++) {
            let n = column + 4u * own.x + j;
            if row < chunk.tokens && n < N {
                var value = sums[i][j];
                if PRECISION == 2u {
                    value = f32(whole[i][j]) * number(SCALE, n) * scales[row];
                }
                y[row * N + n] = activated(value + number(BIAS, n));
            }
        }
    }
}

var<workgroup> asked: array<f32, 1024>;    // [QUERIES, HEAD]
var<workgroup> block: array<f32, 2048>;    // [KEYS, HEAD]: keys, then values
var<workgroup> weighted: array<f32, 128>;  // [QUERIES, KEYS]

// Attention of eight tokens to their sequence, for one head, with a running softmax over blocks of keys.
@compute @workgroup_size(64)
fn attend(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
    let tile = tiles[group.x];
    let head = group.y;
    let width = (HEADS + 2u * KV_HEADS) * HEAD;
    let keys = (HEADS + head / (HEADS / KV_HEADS)) * HEAD;
    let values = keys + KV_HEADS * HEAD;
    let query = thread / 8u;
    let lane = thread % 8u;
    let scale = 1.0 / sqrt(f32(HEAD));
    for (var i = thread; i < QUERIES * HEAD; i += 64u) {
        let row = tile.query + min(i / HEAD, tile.queries - 1u);
        asked[i] = x[row * width + head * HEAD + i % HEAD] * scale;
    }
    var most = NONE;
    var sum = 0.0;
    var found: array<f32, 16>;
    for (var key = tile.key; key < tile.end; key += KEYS) {
        for (var i = thread; i < KEYS * HEAD; i += 64u) {
            block[i] = x[min(key + i / HEAD, tile.end - 1u) * width + keys + i % HEAD];
        }
        workgroupBarrier();
        for (var i = lane; i < KEYS; i += 8u) {
            var score = 0.0;
            for (var d = 0u; d < HEAD; d++) {
                score += asked[query * HEAD + d] * block[i * HEAD + d];
            }
            weighted[query * KEYS + i] = select(NONE, score, key + i < tile.end);
        }
        workgroupBarrier();
        var higher = most;
        for (var i = 0u; i < KEYS; i++) {
            higher = max(higher, weighted[query * KEYS + i]);
        }
        workgroupBarrier();
        for (var i = lane; i < KEYS; i += 8u) {
            let score = weighted[query * KEYS + i];
            weighted[query * KEYS + i] = select(exp(score - higher), 0.0, score == NONE);
        }
        for (var i = thread; i < KEYS * HEAD; i += 64u) {
            block[i] = x[min(key + i / HEAD, tile.end - 1u) * width + values + i % HEAD];
        }
        workgroupBarrier();
        let kept = select(exp(most - higher), 0.0, most == NONE);
        most = higher;
        sum *= kept;
        for (var i = 0u; i < KEYS; i++) {
            sum += weighted[query * KEYS + i];
        }
        for (var n = 0u; lane + 8u * n < HEAD; n++) {
            var value = found[n] * kept;
            for (var i = 0u; i < KEYS; i++) {
                value += weighted[query * KEYS + i] * block[i * HEAD + lane + 8u * n];
            }
            found[n] = value;
        }
        workgroupBarrier();
    }
    if query < tile.queries {
        for (var n = 0u; lane + 8u * n < HEAD; n++) {
            y[(tile.query + query) * HEADS * HEAD + head * HEAD + lane + 8u * n] = found[n] / sum;
        }
    }
}

// y = norm(y + added), and the layer's result if it is the last norm.
@compute @workgroup_size(64)
fn norm(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
    let start = group.x * K;
    var sum = 0.0;
    for (var i = thread; i < K; i += 64u) {
        sum += y[start + i] + added[start + i];
    }
    let mean = total(sum, thread) / f32(K);
    var square = 0.0;
    for (var i = thread; i < K; i += 64u) {
        let value = y[start + i] + added[start + i] - mean;
        square += value * value;
    }
    let deviation = sqrt(total(square, thread) / f32(K) + EPSILON);
    for (var i = 2u * thread; i < K; i += 128u) {
        var pair: vec2f;
        for (var j = 0u; j < 2u; j++) {
            let at = start + i + j;
            pair[j] = (y[at] + added[at] - mean) / deviation * number(WEIGHT, i + j) + number(BIAS, i + j);
            y[at] = pair[j];
        }
        if STORE {
            let at = (chunk.row + group.x) * K + i;
            if HALF {
                states[at >> 1u] = pack2x16float(pair);
            } else {
                states[at] = bitcast<u32>(pair.x);
                states[at + 1u] = bitcast<u32>(pair.y);
            }
        }
    }
}

// The mean of some rows of the states, one result for each sequence.
@compute @workgroup_size(64)
fn pool(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) thread: u32) {
    let own = rows[group.x];
    for (var i = thread; i < K; i += 64u) {
        var sum = 0.0;
        for (var n = 0u; n < own.count; n++) {
            sum += state((own.first + n) * K + i);
        }
        y[group.x * K + i] = sum / f32(own.count);
    }
}
