-- Everything below reads SPEC, the tables above. A message becomes one tree of its protocol:
--   <protocol>.msg     its name          <protocol>.from   client or server          <protocol>.len   its bytes
--   <protocol>.<field> each of its fields, as often as it occurs                     <protocol>.bad   why it cannot be read

local HIDDEN = "<hidden, %d bytes>"
local KINDS = { string = ProtoField.string, uint = ProtoField.uint64, int = ProtoField.int64 }

local function printable(raw)
  if raw:find("^[%g ]*$") then return raw end
  -- UTF-8 without control characters is text too; anything else is shown in hex.
  local at = 1
  while at <= #raw do
    local byte = raw:byte(at)
    local more = byte < 0x80 and 0 or byte >= 0xF0 and 3 or byte >= 0xE0 and 2 or byte >= 0xC2 and 1 or -1
    if more < 0 or byte < 0x20 or byte == 0x7F then more = -1 end
    for index = 1, more do
      local follows = raw:byte(at + index)
      if not follows or follows < 0x80 or follows > 0xBF then more = -1 break end
    end
    if more < 0 then return (raw:gsub(".", function(c) return string.format("%02x", c:byte()) end)) end
    at = at + more + 1
  end
  return raw
end

local function integer(digits)
  -- Decimal digits as a 64-bit number: a Lua number would lose the low bits.
  local low, high = 0, 0
  for digit in digits:gmatch("%d") do
    low = low * 10 + tonumber(digit)
    high = (high * 10 + math.floor(low / 0x100000000)) % 0x100000000
    low = low % 0x100000000
  end
  return low, high
end

-- One field, put into the tree as its kind wants it.
local function put(talk, tree, name, range, value)
  local field = talk.fields[name:lower()]
  if not field then return end
  local kind = talk.spec.fields[name:lower()]
  if kind == "string" then
    tree:add(field, range, tostring(value))
  elseif type(value) == "string" then
    if value == "true" or value == "false" then value = value == "true" and "1" or "0" end
    if not value:find("^-?%d+$") then return end
    local low, high = integer(value)
    if kind == "uint" then
      tree:add(field, range, UInt64(low, high))
    else
      local number = Int64(low, high)
      tree:add(field, range, value:sub(1, 1) == "-" and -number or number)
    end
  else
    tree:add(field, range, value)
  end
end

-- ---------------------------------------------------------------------------------------- binary bodies

local read

local function number_at(range, kind, size)
  if kind == "uint" then return size == 8 and range:uint64() or UInt64(range:uint()) end
  return size == 8 and range:int64() or Int64(range:int())
end

read = function(talk, tvb, at, tree, name, kind)
  local what, size = kind[1], kind[2]
  if what == "uint" or what == "int" then
    local range = tvb(at, size)
    local value = number_at(range, what, size)
    if talk.spec.fields[name:lower()] == "int" and what == "uint" then value = Int64(tonumber(tostring(value))) end
    put(talk, tree, name, range, value)
    return at + size
  elseif what == "bytes" then
    local count = tvb(at, size):uint()
    if at + size + count > tvb:len() then error(name .. " is said to have " .. count .. " bytes") end
    local raw = count > 0 and tvb(at + size, count):raw() or ""
    local shown = kind.secret and string.format(HIDDEN, count) or printable(raw)
    put(talk, tree, name, tvb(at, size + count), shown)
    return at + size + count
  elseif what == "list" then
    local count = tvb(at, 4):uint()
    at = at + 4
    for _ = 1, count do
      for _, part in ipairs(kind[2]) do at = read(talk, tvb, at, tree, part.name or name, part) end
    end
    return at
  elseif what == "maybe" then
    local there = tvb(at, 1):uint()
    return there == 1 and read(talk, tvb, at + 1, tree, name, kind[2]) or at + 1
  elseif what == "fixed" then
    put(talk, tree, name, tvb(at, size), printable(tvb(at, size):raw()))
    return at + size
  elseif what == "rest" then
    if at < tvb:len() then put(talk, tree, name, tvb(at), printable(tvb(at):raw())) end
    return tvb:len()
  end
  error("no kind " .. tostring(what))
end

local function tagged(talk, tvb, at, tree, tags)
  while at < tvb:len() do
    local number, size = tvb(at, 2):uint(), tvb(at + 2, 2):uint()
    local known = tags[number]
    if at + 4 + size > tvb:len() then error("a tagged field is cut off") end
    if known and size > 0 then read(talk, tvb(at + 4, size):tvb(), 0, tree, known.name, known) end
    at = at + 4 + size
  end
  return at
end

local function body(talk, tvb, at, tree, layout)
  for _, part in ipairs(layout) do
    if part.optional and at == tvb:len() then break end
    at = read(talk, tvb, at, tree, part.name, part)
  end
  if layout.tags then at = tagged(talk, tvb, at, tree, layout.tags) end
  if at ~= tvb:len() then error((tvb:len() - at) .. " bytes follow") end
end

-- ---------------------------------------------------------------------------------------- text and JSON

local ESCAPES = { b = "\b", f = "\f", n = "\n", r = "\r", t = "\t" }

local function utf8(code)
  if code < 0x80 then return string.char(code) end
  if code < 0x800 then return string.char(0xC0 + math.floor(code / 64), 0x80 + code % 64) end
  return string.char(0xE0 + math.floor(code / 4096), 0x80 + math.floor(code / 64) % 64, 0x80 + code % 64)
end

local function unquote(text)
  return (text:sub(2, -2):gsub("\\(u?)(.)(%x?%x?%x?)", function(u, first, rest)
    if u == "u" then return utf8(tonumber(first .. rest, 16)) end
    return (ESCAPES[first] or first) .. rest
  end))
end

local function string_end(text, at)
  at = at + 1
  while true do
    local stop = text:find('["\\]', at)
    if not stop then error("a string does not end") end
    if text:byte(stop) == 34 then return stop end
    at = stop + 2
  end
end

local function value_end(text, at)
  local first = text:sub(at, at)
  if first == '"' then return string_end(text, at) end
  if first ~= "{" and first ~= "[" then return (text:find("[,%]}%s]", at) or #text + 1) - 1 end
  local depth = 0
  while at <= #text do
    local c = text:sub(at, at)
    if c == '"' then at = string_end(text, at)
    elseif c == "{" or c == "[" then depth = depth + 1
    elseif c == "}" or c == "]" then
      depth = depth - 1
      if depth == 0 then return at end
    end
    at = at + 1
  end
  error("brackets do not end")
end

local function unpacked(text)
  local well, raw = pcall(function() return ByteArray.new(text, true):base64_decode():raw() end)
  return well and printable(raw) or text
end

-- A document: each of its scalars is a field, by the name of the member that it, or the array around it, is the value of.
local member

local function object(talk, tvb, at, tree, text, place)
  place = text:find("%S", place + 1)
  while place and text:sub(place, place) == '"' do
    local stop = string_end(text, place)
    local key = unquote(text:sub(place, stop))
    local start = text:find("[^%s:]", stop + 1)
    if not start then error("a member has no value") end
    place = text:find("[^%s,]", member(talk, tvb, at, tree, text, key, start) + 1)
  end
end

member = function(talk, tvb, at, tree, text, key, start)
  local last = value_end(text, start)
  local raw = text:sub(start, last)
  local first = raw:sub(1, 1)
  if first == "{" then
    object(talk, tvb, at, tree, text, start)
  elseif first == "[" then
    local place = text:find("%S", start + 1)
    while place and place < last do
      place = text:find("[^%s,]", member(talk, tvb, at, tree, text, key, place) + 1)
    end
  elseif raw ~= "null" then
    local value = first == '"' and unquote(raw) or raw
    if talk.spec.base64 and talk.spec.base64[key:lower()] and first == '"' then value = unpacked(value) end
    put(talk, tree, key, tvb(at + start - 1, last - start + 1), value)
  end
  return last
end

local function json(talk, tvb, at, tree)
  local text = tvb(at):raw()
  local place = text:find("%S")
  if not place or text:sub(place, place) ~= "{" then error("this is no JSON object") end
  value_end(text, place)
  object(talk, tvb, at, tree, text, place)
end

-- `word=value word=value`; brackets keep blanks together, `message` takes the rest.
local function pairs_of(talk, tvb, at, tree, text, place, rest)
  while true do
    local first, last, key = text:find("([%w_]+)=", place)
    if not first then return end
    local stop
    if key == rest then stop = #text
    elseif text:sub(last + 1, last + 1) == "[" then stop = text:find("]", last + 1, true) or #text
    elseif text:sub(last + 1, last + 1) == '"' then stop = string_end(text, last + 1)
    elseif text:sub(last + 1, last + 1) == "{" then stop = value_end(text, last + 1)
    else stop = (text:find("%s", last + 1) or #text + 1) - 1 end
    local value = text:sub(last + 1, stop)
    if talk.spec.secret_words and talk.spec.secret_words[key] then value = string.format(HIDDEN, #value) end
    if #value > 1 and value:sub(1, 1) == '"' then value = unquote(value) end
    put(talk, tree, key, tvb(at + first - 1, stop - first + 1), value)
    place = stop + 1
  end
end

-- ---------------------------------------------------------------------------------------- the six protocols

local asked, answered = {}, {}   -- mayfly: what was asked by stream and id; what an answer, once seen, answered
local stream_of = Field.new("tcp.stream")

local READERS = {}

function READERS.mayfly(talk, tvb, pinfo, tree, is_request)
  local version, number, id = tvb(2, 1):uint(), tvb(3, 1):uint(), tvb(4, 4):uint()
  local start = version == 2 and 13 or 12
  put(talk, tree, "version", tvb(2, 1), UInt64(version))
  put(talk, tree, "id", tvb(4, 4), UInt64(id))
  put(talk, tree, "payload_length", tvb(8, 4), UInt64(tvb(8, 4):uint()))
  local stream = tostring(stream_of())
  local rest = tvb:len() > start and tvb(start):tvb() or nil
  local function within(layout)
    if rest then body(talk, rest, 0, tree, layout) elseif #layout > 0 and not layout[1].optional then error("the body is missing") end
  end
  if is_request then
    local row = talk.spec.commands[number]
    put(talk, tree, "cmd", tvb(3, 1), UInt64(number))
    if version == 2 then put(talk, tree, "consistency", tvb(12, 1), UInt64(tvb(12, 1):uint())) end
    if not row then return "?", "there is no such command" end
    asked[stream .. ":" .. id] = row
    return row.name, nil, function() within(row.request) end
  end
  put(talk, tree, "status_code", tvb(3, 1), UInt64(number))
  local key = pinfo.number .. ":" .. id
  if not pinfo.visited then answered[key] = asked[stream .. ":" .. id] end
  local row, name = answered[key] or asked[stream .. ":" .. id], talk.spec.statuses[number]
  if not name then return "?", "there is no such status" end
  local layout = talk.spec.answers[name] or (row and row.answer)
  return name, nil, function() if layout then within(layout) end end
end

function READERS.peer(talk, tvb, _, tree)
  local number = tvb(3, 1):uint()
  put(talk, tree, "version", tvb(2, 1), UInt64(tvb(2, 1):uint()))
  put(talk, tree, "type", tvb(3, 1), UInt64(number))
  put(talk, tree, "sender", tvb(4, 16), tostring(tvb(4, 16):bytes()):lower())
  put(talk, tree, "payload_length", tvb(20, 4), UInt64(tvb(20, 4):uint()))
  local row = tvb(0, 2):uint() == 0xBEE5 and talk.spec.types[number]
  if not row then return "?", "there is no such message between nodes" end
  return row.name, nil, function() body(talk, tvb, 24, tree, row) end
end

function READERS.mlog(talk, tvb, _, tree)
  local number = tvb(0, 2):uint()
  put(talk, tree, "type", tvb(0, 2), UInt64(number))
  local name = talk.spec.types[number]
  if not name then return "?", "there is no such type" end
  return name, nil, function() json(talk, tvb, 6, tree) end
end

function READERS.rustlog(talk, tvb, _, tree, is_request)
  local first = tvb(4, 1):uint()
  local row = talk.spec.operations[first]
  if (row or first == talk.spec.error_byte) and not (is_request and first == 9 and tvb:len() > 5) then
    put(talk, tree, "type_byte", tvb(4, 1), UInt64(first))
    local layout = first == talk.spec.error_byte and talk.spec.error or is_request and row.request or row.answer
    return layout.name, nil, function() body(talk, tvb, 5, tree, layout) end
  end
  local raw = tvb(4):raw()
  local name = raw:match('"type"%s*:%s*"(%w+)"') or "?"
  return name, nil, function() json(talk, tvb, 4, tree) end
end

local function cursus_batch(talk, tvb, at, tree)
  local topic = tvb(at + 2, 2):uint()
  local place = read(talk, tvb, at + 2, tree, "topic", { "bytes", 2 })
  local mark = tvb(place, 2):uint()
  if mark == 0 or mark == 0xFFFF then
    place = read(talk, tvb, place, tree, "partition", { "int", 4 })
    place = read(talk, tvb, place, tree, "acks", { "bytes", 1 })
  else
    place = read(talk, tvb, place, tree, "partition", { "bytes", 2 })
    place = read(talk, tvb, place, tree, "acks", { "bytes", 2 })
  end
  for _, part in ipairs(talk.spec.batch) do place = read(talk, tvb, place, tree, part.name, part) end
  local count = tvb(place, 4):int()
  put(talk, tree, "count", tvb(place, 4), tostring(count))
  place = place + 4
  for _ = 1, count do
    for _, part in ipairs(talk.spec.record) do place = read(talk, tvb, place, tree, part.name, part) end
  end
  if place ~= tvb:len() then error((tvb:len() - place) .. " bytes follow") end
end

function READERS.cursus(talk, tvb, _, tree, is_request)
  if tvb:len() == 4 then return is_request and "?" or "KeepAlive" end
  if tvb(4, 2):uint() == 0xBA7C then return "0xBA7C", nil, function() cursus_batch(talk, tvb, 4, tree) end end
  local at = 4
  if is_request and tvb(4, 1):uint() == 0 then at = 6 + tvb(4, 2):uint() end
  local text = tvb(at):raw()
  if text:sub(1, 1) == "{" then return "JSON", nil, function() json(talk, tvb, at, tree) end end
  if text:sub(1, 6) == "ERROR:" then
    local first, last, code = text:find("ERROR:%s*(%S+)")
    if not code then return "ERROR" end
    put(talk, tree, "code", tvb(at + first - 1, last), code)
    return "ERROR", nil, function() pairs_of(talk, tvb, at, tree, text, last + 1) end
  end
  local first, last, name = text:find("(%S+)")
  if not name then return "?", "an empty command" end
  if not is_request then return name, nil, function() pairs_of(talk, tvb, at, tree, text, last + 1) end end
  name = name:upper()
  local row = talk.spec.commands[name]
  if not row then return "?", "there is no such command" end
  return name, nil, function()
    if row.positional and not text:find("=", 1, true) then
      local index = 1
      for start, word, stop in text:sub(last + 1):gmatch("()(%S+)()") do
        if row.positional[index] then put(talk, tree, row.positional[index], tvb(at + last + start - 1, stop - start), word) end
        index = index + 1
      end
    else
      pairs_of(talk, tvb, at, tree, text, last + 1, row.rest and "message" or nil)
    end
  end
end

function READERS.flux(talk, tvb, _, tree, is_request)
  local text = tvb():raw():gsub("[\r\n]+$", "")
  local version, id, word, at = text:match("^([^|]*)|([^|]*)|([^|]*)|?()")
  if not version then return "?", "V1|id|command|args is expected" end
  put(talk, tree, "version", tvb(0, #version), version)
  put(talk, tree, "id", tvb(#version + 1, #id), id)
  if not is_request then
    if word == "ERR" then
      local code, message = text:match("^([^|]*)|?(.*)", at)
      put(talk, tree, "code", tvb(at - 1, #code), code)
      if #message > 0 then put(talk, tree, "message", tvb(at + #code, #message), message) end
      return "ERR"
    end
    return word, nil, function() pairs_of(talk, tvb, 0, tree, text, at) end
  end
  local name = word:upper()
  local row = talk.spec.commands[name]
  if not row then return "?", "there is no such command" end
  return name, nil, function()
    local index = 1
    for start, piece, stop in text:sub(at):gmatch("()(%S+)()") do
      local range = tvb(at + start - 2, stop - start)
      local key, value = piece:match("^([a-z_]+)=(.*)$")
      if index > #row.required and key then put(talk, tree, key, range, value)
      elseif row.positional[index] == "key_value" then
        local name, text = piece:match("^([^:]*):(.*)$")
        local is_packed = tvb():raw():find(" enc=b64", 1, true)
        put(talk, tree, "key", range, is_packed and unpacked(name or "") or name)
        put(talk, tree, "value", range, is_packed and unpacked(text or "") or text)
      elseif row.positional[index] then put(talk, tree, row.positional[index], range, piece) end
      index = index + 1
    end
  end
end

-- ---------------------------------------------------------------------------------------- frames

local LENGTHS = {
  mayfly = { 12, function(tvb, _, at) return (tvb(at + 2, 1):uint() == 2 and 13 or 12) + tvb(at + 8, 4):uint() end },
  peer = { 24, function(tvb, _, at) return 24 + tvb(at + 20, 4):uint() end },
  mlog = { 6, function(tvb, _, at) return 6 + tvb(at + 2, 4):uint() end },
  rustlog = { 4, function(tvb, _, at) return 4 + tvb(at, 4):uint() end },
  cursus = { 4, function(tvb, _, at) return 4 + tvb(at, 4):uint() end },
}

local function show(talk, tvb, pinfo, root)
  local is_request = pinfo.dst_port == pinfo.match_uint
  local tree = root:add(talk.proto, tvb())
  put(talk, tree, "from", tvb(0, 0), is_request and "client" or "server")
  put(talk, tree, "len", tvb(0, 0), UInt64(tvb:len()))
  local done, name, fault, fields = pcall(READERS[talk.name], talk, tvb, pinfo, tree, is_request)
  if not done then name, fault, fields = "?", tostring(name), nil end
  put(talk, tree, "msg", tvb(0, 0), name)
  if fields then
    local well, why = pcall(fields)
    if not well then fault = tostring(why) end
  end
  if fault then put(talk, tree, "bad", tvb(), (fault:gsub("^.-:%d+: ", ""))) end
  tree:append_text(": " .. name .. (is_request and " from the client" or " from the server"))
  pinfo.cols.protocol = talk.name
  pinfo.cols.info:append(" " .. name)
  return tvb:len()
end

-- A client may say who it is before its first frame. The token is not shown.
local function introduction(talk, tvb, pinfo, root)
  if pinfo.dst_port ~= pinfo.match_uint or tvb:len() < 5 or tvb(0, 5):raw() ~= "AUTH " then return 0 end
  local stop = tvb():raw():find("\n", 1, true)
  if not stop then return 0 end
  local tree = root:add(talk.proto, tvb(0, stop))
  put(talk, tree, "from", tvb(0, 0), "client")
  put(talk, tree, "msg", tvb(0, 4), "AUTH")
  put(talk, tree, "principal", tvb(0, stop), tvb(0, stop):raw():match("^AUTH%s+(%S+)") or "?")
  return stop
end

local function lines(talk, tvb, pinfo, root, at)
  while at < tvb:len() do
    local stop = tvb(at):raw():find("\n", 1, true)
    if not stop then
      pinfo.desegment_offset = at
      pinfo.desegment_len = DESEGMENT_ONE_MORE_SEGMENT
      return
    end
    show(talk, tvb(at, stop):tvb(), pinfo, root)
    at = at + stop
  end
end

for name, spec in pairs(SPEC) do
  local talk = { name = name, spec = spec, fields = {} }
  talk.proto = Proto(name, spec.title)
  for field, kind in pairs(spec.fields) do
    talk.fields[field] = KINDS[kind](name .. "." .. field, field)
    table.insert(talk.proto.fields, talk.fields[field])
  end
  function talk.proto.dissector(tvb, pinfo, root)
    local at = introduction(talk, tvb, pinfo, root)
    if at == tvb:len() then return at end
    pinfo.cols.info = ""
    if name == "flux" then
      lines(talk, tvb, pinfo, root, at)
    else
      local framing = LENGTHS[name]
      dissect_tcp_pdus(at > 0 and tvb(at):tvb() or tvb, root, framing[1], framing[2], function(pdu, info, tree)
        return show(talk, pdu, info, tree)
      end)
    end
    return tvb:len()
  end
  function talk.proto.init() asked, answered = {}, {} end
  DissectorTable.get("tcp.port"):add(spec.port, talk.proto)
end
