"""Lua scripts of the Redis queue: each call is one script, and a script is atomic.

Keys, all below one prefix with a hash tag, so that a cluster keeps them in one slot:

    seq                   the last number given to an item
    clock                 queue time
    queues                names of queues with items
    ids:QUEUE             item's id → seq
    item:SEQ              the item's fields
    story:SEQ             entries of its story, oldest first
    ready:QUEUE           seqs in the order of urgency
    in:STATE:QUEUE        seqs in one state, by number: for counts and for pages
    timed                 seqs that are leased or delayed, by the queue time at which that ends
    group:…, groupopen:…  seqs of a group, and those of them that have not ended
    groupcount:…          state → count

Every item's move from one state to another goes through ``move``, so these never disagree.
"""

from typing import Final

_LIBRARY: Final = """
local P = KEYS[1]
local OPEN = { ready = true, delayed = true, leased = true }

local function padded(seq) return string.format('%016d', seq) end

local function group_key(kind, queue, group)
  return P .. kind .. ':' .. #queue .. ':' .. queue .. ':' .. group
end

local function item_of(seq)
  local flat = redis.call('HGETALL', P .. 'item:' .. seq)
  if #flat == 0 then return nil end
  local item = { seq = seq }
  for i = 1, #flat, 2 do item[flat[i]] = flat[i + 1] end
  return item
end

local function now() return tonumber(redis.call('GET', P .. 'clock') or '0') end

-- Moves an item to a state (nil: away), and all that is counted with it. `until_` is for the timed.
local function move(item, state, until_)
  local seq, queue = item.seq, item.queue
  local counts = group_key('groupcount', queue, item.group)
  if item.state then
    redis.call('ZREM', P .. 'in:' .. item.state .. ':' .. queue, seq)
    if redis.call('HINCRBY', counts, item.state, -1) == 0 then
      redis.call('HDEL', counts, item.state)
    end
    if item.state == 'ready' then redis.call('ZREM', P .. 'ready:' .. queue, padded(seq)) end
    if item.state == 'leased' or item.state == 'delayed' then
      redis.call('ZREM', P .. 'timed', seq)
    end
  end
  if state then
    redis.call('ZADD', P .. 'in:' .. state .. ':' .. queue, seq, seq)
    redis.call('HINCRBY', counts, state, 1)
    if state == 'ready' then redis.call('ZADD', P .. 'ready:' .. queue, item.rank, padded(seq)) end
    if state == 'leased' or state == 'delayed' then
      redis.call('ZADD', P .. 'timed', string.format('%.6f', until_), seq)
    end
    redis.call('HSET', P .. 'item:' .. seq, 'state', state)
  end
  local open = group_key('groupopen', queue, item.group)
  if state and OPEN[state] then
    redis.call('ZADD', open, seq, seq)
  else
    redis.call('ZREM', open, seq)
  end
  item.state = state
end

local function finish(item, state, wall, result)
  move(item, state)
  redis.call('HSET', P .. 'item:' .. item.seq, 'ended_at', wall, 'result', result)
  if state ~= 'dead' then redis.call('HDEL', P .. 'item:' .. item.seq, 'payload') end
end

local function fence(item)
  redis.call('HINCRBY', P .. 'item:' .. item.seq, 'leases', 1)
  redis.call('HSET', P .. 'item:' .. item.seq, 'token', '')
end

-- One receive failed: the item waits for its next one, or is a dead letter.
local function fail(item, what, wall, note, pause, dead, entries_max)
  local told = '{"what":' .. cjson.encode(what) .. ',"receive":' .. item.receives
  told = told .. ',"at":' .. wall
  if item.owner ~= '' then told = told .. ',"owner":' .. cjson.encode(item.owner) end
  if note ~= '{}' then told = told .. ',"note":' .. note end
  local key = P .. 'story:' .. item.seq
  if redis.call('RPUSH', key, told .. '}') > entries_max then
    redis.call('LSET', key, 1, '')
    redis.call('LREM', key, 1, '')
  end
  if dead or tonumber(item.receives) >= tonumber(item.max_receives) then
    finish(item, 'dead', wall, '')
  elseif pause > 0 then
    move(item, 'delayed', now() + pause)
  else
    move(item, 'ready')
  end
end

local function sweep(wall, entries_max)
  local due = redis.call('ZRANGEBYSCORE', P .. 'timed', '-inf', string.format('%.6f', now()),
                         'LIMIT', 0, 1000)
  for _, seq in ipairs(due) do
    local item = item_of(seq)
    if item.state == 'delayed' then
      move(item, 'ready')
    else  -- the token stays: until somebody takes the item, its late holder may still end it
      fail(item, 'lease ran out', wall, '{}', 0, false, entries_max)
    end
  end
end

local function held(queue, id, token)
  local seq = redis.call('HGET', P .. 'ids:' .. queue, id)
  if not seq then return nil, 'gone' end
  local item = item_of(seq)
  if item.token ~= token or token == '' then return nil, 'fenced' end
  if OPEN[item.state] then return item, 'ok' end
  if item.state == 'done' or item.state == 'failed' then return nil, 'repeated' end
  return nil, 'fenced'
end

local function view(item)
  local story = redis.call('LRANGE', P .. 'story:' .. item.seq, 0, -1)
  return { item.queue, item.id, item.seq, item.state, item.group, item.tenant, item.priority,
           item.deadline, item.receives, item.max_receives, item.enqueued_at,
           item.ended_at or '', item.owner, item.payload or '', item.result or '', story,
           item.token or '' }
end
"""

# ARGV: proposal. Keeps the larger one.
TICK: Final = (
    _LIBRARY
    + """
local proposed = tonumber(ARGV[1])
if proposed > now() then redis.call('SET', P .. 'clock', string.format('%.6f', proposed)) end
return redis.call('GET', P .. 'clock') or '0'
"""
)

# ARGV: queue, wall, items_max, then for each item id, payload, group, tenant, priority, deadline,
# rank, max_receives, delay.
ENQUEUE: Final = (
    _LIBRARY
    + """
local queue, wall = ARGV[1], ARGV[2]
local adding = (#ARGV - 3) / 9
local there = tonumber(redis.call('GET', P .. 'count') or '0')
if there + adding > tonumber(ARGV[3]) then return { 'full', there } end
local added = {}
for at = 4, #ARGV, 9 do
  local id = ARGV[at]
  if redis.call('HEXISTS', P .. 'ids:' .. queue, id) == 1 then
    added[#added + 1] = 0
  else
    local seq = redis.call('INCR', P .. 'seq')
    redis.call('HSET', P .. 'ids:' .. queue, id, seq)
    redis.call('INCR', P .. 'count')
    local item = { seq = seq, queue = queue, group = ARGV[at + 2], rank = ARGV[at + 6] }
    redis.call('HSET', P .. 'item:' .. seq, 'queue', queue, 'id', id, 'payload', ARGV[at + 1],
      'group', ARGV[at + 2], 'tenant', ARGV[at + 3], 'priority', ARGV[at + 4],
      'deadline', ARGV[at + 5], 'rank', ARGV[at + 6], 'max_receives', ARGV[at + 7],
      'receives', 0, 'leases', 0, 'token', '', 'owner', '', 'enqueued_at', wall)
    redis.call('ZADD', group_key('group', queue, item.group), seq, seq)
    local delay = tonumber(ARGV[at + 8])
    if delay > 0 then move(item, 'delayed', now() + delay) else move(item, 'ready') end
    added[#added + 1] = 1
  end
end
if adding > 0 then redis.call('SADD', P .. 'queues', queue) end
return added
"""
)

# ARGV: queue, wall, max_receives, then for each id, state, result, payload, group, tenant,
# receives, owner, rank, story.
SETTLE: Final = (
    _LIBRARY
    + """
local queue, wall, added = ARGV[1], ARGV[2], {}
for at = 4, #ARGV, 10 do
  local id = ARGV[at]
  if redis.call('HEXISTS', P .. 'ids:' .. queue, id) == 1 then
    added[#added + 1] = 0
  else
    local seq = redis.call('INCR', P .. 'seq')
    redis.call('HSET', P .. 'ids:' .. queue, id, seq)
    redis.call('INCR', P .. 'count')
    local item = { seq = seq, queue = queue, group = ARGV[at + 4] }
    redis.call('HSET', P .. 'item:' .. seq, 'queue', queue, 'id', id, 'result', ARGV[at + 2],
      'payload', ARGV[at + 3], 'group', ARGV[at + 4], 'tenant', ARGV[at + 5], 'priority', 0,
      'deadline', '', 'rank', ARGV[at + 8], 'max_receives', ARGV[3], 'receives', ARGV[at + 6],
      'leases', 0, 'token', '', 'owner', ARGV[at + 7], 'enqueued_at', wall, 'ended_at', wall)
    redis.call('ZADD', group_key('group', queue, item.group), seq, seq)
    move(item, ARGV[at + 1])
    for told in string.gmatch(ARGV[at + 9], '[^\\n]+') do
      redis.call('RPUSH', P .. 'story:' .. seq, told)
    end
    redis.call('SADD', P .. 'queues', queue)
    added[#added + 1] = 1
  end
end
return added
"""
)

# ARGV: wall, entries_max, queue, count, seconds, owner, nonce. The nonce makes tokens of a lease
# that a crash of the server took back differ from those of the lease that comes after.
LEASE: Final = (
    _LIBRARY
    + """
sweep(ARGV[1], tonumber(ARGV[2]))
local queue, until_ = ARGV[3], now() + tonumber(ARGV[5])
local taken = {}
local first = redis.call('ZRANGE', P .. 'ready:' .. queue, 0, tonumber(ARGV[4]) - 1)
for i, name in ipairs(first) do
  local item = item_of(tostring(tonumber(name)))
  item.receives = redis.call('HINCRBY', P .. 'item:' .. item.seq, 'receives', 1)
  local count = redis.call('HINCRBY', P .. 'item:' .. item.seq, 'leases', 1)
  item.token = count .. '-' .. ARGV[7]
  item.owner = ARGV[6]
  redis.call('HSET', P .. 'item:' .. item.seq, 'token', item.token, 'owner', item.owner)
  move(item, 'leased', until_)
  taken[i] = view(item)
end
return taken
"""
)

# ARGV: seconds, then queue, id, token for each.
EXTEND: Final = (
    _LIBRARY
    + """
local answers, until_ = {}, now() + tonumber(ARGV[1])
for at = 2, #ARGV, 3 do
  local item, answer = held(ARGV[at], ARGV[at + 1], ARGV[at + 2])
  if item then move(item, 'leased', until_) end
  answers[#answers + 1] = answer
end
return answers
"""
)

# ARGV: wall, then queue, id, token, state, result for each.
ACK: Final = (
    _LIBRARY
    + """
local answers = {}
for at = 2, #ARGV, 5 do
  local item, answer = held(ARGV[at], ARGV[at + 1], ARGV[at + 2])
  if item then finish(item, ARGV[at + 3], ARGV[1], ARGV[at + 4]) end
  answers[#answers + 1] = answer
end
return answers
"""
)

# ARGV: wall, entries_max, note, pause (or empty), first pause, longest pause, dead, then queue, id,
# token for each.
NACK: Final = (
    _LIBRARY
    + """
local answers = {}
for at = 8, #ARGV, 3 do
  local item, answer = held(ARGV[at], ARGV[at + 1], ARGV[at + 2])
  if item then
    local pause = tonumber(ARGV[4])
    if not pause then
      local doubled = tonumber(ARGV[5]) * 2 ^ math.min(math.max(item.receives - 1, 0), 16)
      pause = math.min(doubled, tonumber(ARGV[6]))
    end
    fence(item)
    fail(item, 'nacked', ARGV[1], ARGV[3], pause, ARGV[7] == '1', tonumber(ARGV[2]))
  end
  answers[#answers + 1] = answer
end
return answers
"""
)

# ARGV: queue, id, token for each.
RELEASE: Final = (
    _LIBRARY
    + """
local answers = {}
for at = 1, #ARGV, 3 do
  local item, answer = held(ARGV[at], ARGV[at + 1], ARGV[at + 2])
  if item then
    if tonumber(item.receives) > 0 then
      redis.call('HINCRBY', P .. 'item:' .. item.seq, 'receives', -1)
    end
    fence(item)
    move(item, 'ready')
  end
  answers[#answers + 1] = answer
end
return answers
"""
)

# ARGV: wall, entries_max, owner.
RECLAIM: Final = (
    _LIBRARY
    + """
local count = 0
for _, seq in ipairs(redis.call('ZRANGE', P .. 'timed', 0, -1)) do
  local key = P .. 'item:' .. seq
  local found = redis.call('HMGET', key, 'state', 'owner')
  if found[1] == 'leased' and found[2] == ARGV[3] then
    local item = item_of(seq)
    fence(item)
    fail(item, 'owner ended', ARGV[1], '{}', 0, false, tonumber(ARGV[2]))
    count = count + 1
  end
end
return count
"""
)

# ARGV: wall, entries_max, queue, group.
CANCEL: Final = (
    _LIBRARY
    + """
sweep(ARGV[1], tonumber(ARGV[2]))
local count = 0
for _, seq in ipairs(redis.call('ZRANGE', group_key('groupopen', ARGV[3], ARGV[4]), 0, -1)) do
  local item = item_of(seq)
  if item.state == 'ready' or item.state == 'delayed' then
    fence(item)
    finish(item, 'cancelled', ARGV[1], '')
    count = count + 1
  end
end
return count
"""
)

# ARGV: queue, all ('1') or not, then ids.
REDRIVE: Final = (
    _LIBRARY
    + """
local queue, seqs = ARGV[1], {}
if ARGV[2] == '1' then
  seqs = redis.call('ZRANGE', P .. 'in:dead:' .. queue, 0, -1)
else
  for at = 3, #ARGV do
    seqs[#seqs + 1] = redis.call('HGET', P .. 'ids:' .. queue, ARGV[at]) or nil
  end
end
local count = 0
for _, seq in ipairs(seqs) do
  local item = item_of(seq)
  if item.state == 'dead' then
    fence(item)
    redis.call('HSET', P .. 'item:' .. seq, 'receives', 0)
    redis.call('HDEL', P .. 'item:' .. seq, 'ended_at')
    move(item, 'ready')
    count = count + 1
  end
end
return count
"""
)

# ARGV: queue, group, of a group ('1') or not, most in one call, states separated by commas, of some
# ids ('1') or not, then ids. Returns how many were deleted, and 1 where more are left.
PURGE: Final = (
    _LIBRARY
    + """
local queue, most = ARGV[1], tonumber(ARGV[4])
local seqs, wanted = {}, {}
for at = 7, #ARGV do
  local seq = redis.call('HGET', P .. 'ids:' .. queue, ARGV[at])
  if seq then wanted[seq] = true end
end
for state in string.gmatch(ARGV[5], '[^,]+') do
  for _, seq in ipairs(redis.call('ZRANGE', P .. 'in:' .. state .. ':' .. queue, 0, -1)) do
    if #seqs > most then break end
    local fits = ARGV[6] ~= '1' or wanted[seq]
    local group = group_key('group', queue, ARGV[2])
    if fits and (ARGV[3] ~= '1' or redis.call('ZSCORE', group, seq)) then
      seqs[#seqs + 1] = seq
    end
  end
end
for i, seq in ipairs(seqs) do
  if i > most then break end
  local item = item_of(seq)
  move(item, nil)
  redis.call('ZREM', group_key('group', queue, item.group), seq)
  redis.call('HDEL', P .. 'ids:' .. queue, item.id)
  redis.call('DEL', P .. 'item:' .. seq, P .. 'story:' .. seq)
  redis.call('DECR', P .. 'count')
end
if redis.call('HLEN', P .. 'ids:' .. queue) == 0 then redis.call('SREM', P .. 'queues', queue) end
return { math.min(#seqs, most), #seqs > most and 1 or 0 }
"""
)

# ARGV: wall, entries_max, group, of a group ('1') or not, states separated by commas, then queues
# (none: all). Returns for each queue its name, a count for each state, the oldest's time.
DEPTHS: Final = (
    _LIBRARY
    + """
sweep(ARGV[1], tonumber(ARGV[2]))
local queues = {}
for at = 6, #ARGV do queues[#queues + 1] = ARGV[at] end
if #queues == 0 then queues = redis.call('SMEMBERS', P .. 'queues') end
local answer = {}
for _, queue in ipairs(queues) do
  local counts, oldest = {}, nil
  for state in string.gmatch(ARGV[5], '[^,]+') do
    local key, count = P .. 'in:' .. state .. ':' .. queue, 0
    if ARGV[4] == '1' then
      count = redis.call('HGET', group_key('groupcount', queue, ARGV[3]), state) or 0
    else
      count = redis.call('ZCARD', key)
      local first = OPEN[state] and redis.call('ZRANGE', key, 0, 0)[1]
      if first and (not oldest or tonumber(first) < oldest) then oldest = tonumber(first) end
    end
    counts[#counts + 1] = tonumber(count)
  end
  if ARGV[4] == '1' then
    oldest = redis.call('ZRANGE', group_key('groupopen', queue, ARGV[3]), 0, 0)[1]
  end
  local since = oldest and redis.call('HGET', P .. 'item:' .. oldest, 'enqueued_at') or ''
  answer[#answer + 1] = { queue, counts, since }
end
return answer
"""
)

# ARGV: wall, entries_max, queue, group, of a group ('1') or not, after, limit, states separated by
# commas (empty: all).
ITEMS: Final = (
    _LIBRARY
    + """
sweep(ARGV[1], tonumber(ARGV[2]))
local queue, limit, wanted, any = ARGV[3], tonumber(ARGV[7]), {}, ARGV[8] == ''
local names = any and 'ready,delayed,leased,done,failed,dead,cancelled' or ARGV[8]
for state in string.gmatch(names, '[^,]+') do wanted[#wanted + 1] = state end
local seqs, kept = {}, {}
local after = '(' .. ARGV[6]
if ARGV[5] == '1' then
  local is = {}
  for _, state in ipairs(wanted) do is[state] = true end
  local key = group_key('group', queue, ARGV[4])
  while #kept < limit do
    local page = redis.call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', 0, 500)
    if #page == 0 then break end
    for _, seq in ipairs(page) do
      after = '(' .. seq
      local state = redis.call('HGET', P .. 'item:' .. seq, 'state')
      if is[state] and #kept < limit then kept[#kept + 1] = seq end
    end
  end
else
  for _, state in ipairs(wanted) do
    local key = P .. 'in:' .. state .. ':' .. queue
    for _, seq in ipairs(redis.call('ZRANGEBYSCORE', key, after, '+inf', 'LIMIT', 0, limit)) do
      seqs[#seqs + 1] = seq
    end
  end
  table.sort(seqs, function(a, b) return tonumber(a) < tonumber(b) end)
  for i = 1, math.min(#seqs, limit) do kept[i] = seqs[i] end
end
local answer = {}
for i, seq in ipairs(kept) do answer[i] = view(item_of(seq)) end
return answer
"""
)

# ARGV: wall, entries_max, queue, id.
ITEM: Final = (
    _LIBRARY
    + """
sweep(ARGV[1], tonumber(ARGV[2]))
local seq = redis.call('HGET', P .. 'ids:' .. ARGV[3], ARGV[4])
return seq and view(item_of(seq)) or {}
"""
)
