-- The beginning of every script: the clock, the arguments, and helpers for commands.
--
-- The loader puts constants in front of this text, generated from layout.py: the keys of the box (META, MESSAGES, …), the
-- positions of the fields in a progress record (STATE, FENCE, …), and the names of the content fields that scripts read
-- (CONTENT).
--
-- ARGV[1]  the time in microseconds; empty: the server's clock
-- ARGV[2]  the policies of the box, as MessagePack
-- ARGV[3]  the arguments of the script, as MessagePack
-- ARGV[4]  put, record, mark, begin: the contents, packed one after the other; settle: the results

local call, pack, unpack_message = redis.call, cmsgpack.pack, cmsgpack.unpack
local format, sub, concat = string.format, string.sub, table.concat

local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
-- The same number as an argument of commands: formatted once.
local now_text = format('%.0f', now)
local policy = unpack_message(ARGV[2])
local args = unpack_message(ARGV[3])

-- `unpack` fails above about 8000 values. The limit is even, because some commands take pairs.
local MAX_VALUES = 7000

-- Calls a writing command with any number of arguments.
local function write(command, key, values)
  for first = 1, #values, MAX_VALUES do
    call(command, key, unpack(values, first, math.min(first + MAX_VALUES - 1, #values)))
  end
end

-- Calls HMGET or ZMSCORE with any number of members. Returns one value per member, false where there is none.
local function fetch(command, key, members)
  if #members == 0 then return {} end
  if #members <= MAX_VALUES then return call(command, key, unpack(members)) end
  local values = {}
  for first = 1, #members, MAX_VALUES do
    for _, value in ipairs(call(command, key, unpack(members, first, math.min(first + MAX_VALUES - 1, #members)))) do
      values[#values + 1] = value
    end
  end
  return values
end

-- Returns the text behind its length: no such string is a prefix of another one.
local length_prefixed_texts = {}
local function length_prefixed(text)
  local prefixed = length_prefixed_texts[text]
  if not prefixed then
    prefixed = struct.pack('>I4', #text) .. text
    length_prefixed_texts[text] = prefixed
  end
  return prefixed
end

-- Returns at most `count` members with this prefix, of a sorted set whose scores are all 0. -1: all of them.
local function members_with_prefix(key, prefix, count)
  return call('ZRANGEBYLEX', key, '[' .. prefix, '(' .. prefix .. '\255', 'LIMIT', 0, count)
end

-- Returns the id at the end of a member.
local function id_of(member)
  return sub(member, -16)
end

-- Iterates over ids that are written one after the other.
local function each_id(ids)
  local at = -15
  return function()
    at = at + 16
    if at < #ids then return sub(ids, at, at + 15) end
  end
end

-- Lets the script write on a server that has reached `maxmemory`. Such a server rejects the first write of a script if it
-- needs memory, and no write after another one; HDEL needs none. Only new messages must be rejected: outcomes are stored.
local function write_even_if_full()
  call('HDEL', META, 'full')
end

-- True if this script has made a message claimable.
local has_claimable = false

-- Publishes a wake-up for workers, at most one per script. Its failure is ignored: the user may lack the right to publish,
-- and workers poll.
local function publish_wakeup()
  if has_claimable and policy.channel then redis.pcall(policy.publish, policy.channel, policy.box) end
end
