-- What every script begins with: the keys of the box, the time, the policies, and short words for common commands.
local META, MESSAGES, STATES, DEDUP, NAMESAKES, INDEX = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local SEEN, PENDING, CAPTURED, EXPIRING, DONE, DLQ = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local LINE, LINES, LOCKS, COLLAPSE, PAGES = KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17]

local call, pack, unpack_message = redis.call, cmsgpack.pack, cmsgpack.unpack
local format, sub, concat = string.format, string.sub, table.concat

-- The server's clock; a test hands in its own.
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
-- A number that goes to many commands is written once.
local now_text = format('%.0f', now)
local policy = unpack_message(ARGV[2])
local given = unpack_message(ARGV[3])

-- Lua takes some 8000 arguments at once; even, since some come in pairs.
local MOST = 7000

local function write(command, key, arguments)
  for first = 1, #arguments, MOST do
    call(command, key, unpack(arguments, first, math.min(first + MOST - 1, #arguments)))
  end
end

-- HMGET and ZMSCORE: as many answers as members, false where there is none.
local function fetch(command, key, members)
  if #members == 0 then return {} end
  if #members <= MOST then return call(command, key, unpack(members)) end
  local answers = {}
  for first = 1, #members, MOST do
    for _, answer in ipairs(call(command, key, unpack(members, first, math.min(first + MOST - 1, #members)))) do
      answers[#answers + 1] = answer
    end
  end
  return answers
end

-- A text that no other begins with: for members that are found by how they begin.
local prefixes = {}
local function prefixed(text)
  local prefix = prefixes[text]
  if not prefix then
    prefix = struct.pack('>I4', #text) .. text
    prefixes[text] = prefix
  end
  return prefix
end

-- The members of a sorted set of score 0 that begin so.
local function beginning(key, prefix, count)
  return call('ZRANGEBYLEX', key, '[' .. prefix, '(' .. prefix .. '\255', 'LIMIT', 0, count)
end

local function id_of(member)
  return sub(member, -16)
end

local function each_id(ids)
  local at = -15
  return function()
    at = at + 16
    if at < #ids then return sub(ids, at, at + 15) end
  end
end

-- A server that is full refuses the first write of a script if that needs memory, and none after another write. What was
-- done must be written down all the same: only new messages are refused.
local function even_if_full()
  call('HDEL', META, 'full')
end

-- Whether somebody should be told that there is work. A hint, once per script and box.
local claimable = false

local function tell()
  if claimable and policy.channel then
    -- Nothing fails because of a hint, such as the call of a user who has no right to publish.
    redis.pcall(policy.publish, policy.channel, policy.box)
  end
end
