// Runs js-libp2p as the other end of a chunk link that a Rollcast peer dials: prints its address, greets with a
// certificate of the run, and answers each request with the bytes of the file `chunk`.
//
// usage: node serve_chunk.mjs FOLDER, which holds settings.json, certificate.der, seed (32 bytes, Ed25519) and chunk
//
// settings: run_id, protocol_min, protocol_max, proto (path), and optionally relay: the libp2p address of the relay through
// which alone it is then reached

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { multiaddr } from '@multiformats/multiaddr'
import {
  begin, CHUNK, CHUNK_HEADER_BYTES, frame, frames, Leaving, PROTOCOL, run, showCertificate, SIGN_EVERY_MS, SIGN_OF_LIFE,
  THROUGH_RELAYS
} from './link.mjs'

const OPENING_BYTES = 17

/** Returns the opening bytes of a lane, and the rest of it. */
async function opened (stream) {
  const pieces = stream.source[Symbol.asyncIterator]()
  let held = Buffer.alloc(0)
  while (held.length < OPENING_BYTES) held = Buffer.concat([held, (await pieces.next()).value.subarray()])
  async function * rest () {
    yield held.subarray(OPENING_BYTES)
    for (;;) {
      const { value, done } = await pieces.next()
      if (done) return
      yield value
    }
  }
  return { lane: held[0], token: held.subarray(1, OPENING_BYTES).toString('hex'), rest: rest() }
}

function chunkFrame ({ version, encodingId, indices }, payload) {
  const header = Buffer.alloc(CHUNK_HEADER_BYTES)
  header.writeBigUInt64BE(BigInt(version), 0)
  header.writeUInt32BE(encodingId, 8)
  header.writeUInt32BE(indices[0], 12)
  header.writeUInt16BE(0xFFFF, 16)
  return frame(CHUNK, Buffer.concat([header, payload]))
}

async function main (folder) {
  const { relay } = JSON.parse(readFileSync(join(folder, 'settings.json'), 'utf8'))
  const { node, hello, encode, decode } = await begin(folder, relay ? [] : ['/ip4/127.0.0.1/tcp/0'])
  const payload = readFileSync(join(folder, 'chunk'))
  const waiting = new Map()

  await node.handle(PROTOCOL, async ({ stream }) => {
    const leaving = new Leaving()
    stream.sink(leaving).catch(() => {}) // the other end closed
    const { lane, token, rest } = await opened(stream)
    const other = waiting.get(token)
    if (other === undefined) {
      waiting.set(token, { leaving, rest })
      return
    }
    const [up, down] = lane === 0 ? [{ leaving, rest }, other] : [other, { leaving, rest }]
    up.leaving.push(SIGN_OF_LIFE)
    setInterval(() => up.leaving.push(SIGN_OF_LIFE), SIGN_EVERY_MS)
    for await (const { body } of frames(up.rest)) {
      const message = decode(body)
      if (message.hello) down.leaving.push(encode({ hello }))
      if (message.request) down.leaving.push(chunkFrame(message.request, payload))
    }
  }, THROUGH_RELAYS)
  if (relay) {
    await showCertificate(node, folder, relay)
    await node.components.transportManager.listen([multiaddr(`${relay}/p2p-circuit`)]) // listening there makes a reservation
  }
  console.log(JSON.stringify({ address: node.getMultiaddrs()[0].toString() }))
  await new Promise(resolve => process.stdin.on('end', resolve).resume()) // until the starting process closes stdin
}

run(main)
