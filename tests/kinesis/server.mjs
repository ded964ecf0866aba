// kinesalite in a process that ends with its standard input. `listen` answers with the port.
import { createRequire } from 'node:module'
import { createInterface } from 'node:readline'

const require = createRequire(import.meta.url)
const path = require.resolve('kinesalite/actions/getShardIterator.js')
const original = require(path)
// It never answers AT_TIMESTAMP for a shard without records of that time: give the shard's beginning instead.
require.cache[path].exports = (store, data, callback) => {
  if (data.ShardIteratorType !== 'AT_TIMESTAMP') return original(store, data, callback)
  const { Timestamp, ...rest } = data
  return original(store, { ...rest, ShardIteratorType: 'TRIM_HORIZON' }, callback)
}
const kinesalite = require('kinesalite')

// It would end with a client that is killed in the middle of a request.
process.on('uncaughtException', (error) => {
  if (error.code !== 'ECONNRESET') throw error
})

function listen() {
  return new Promise((resolve) => {
    const server = kinesalite({ createStreamMs: 1, deleteStreamMs: 1, updateStreamMs: 1, shardLimit: 1000 })
    server.listen(0, '127.0.0.1', () => resolve(server.address().port))
  })
}

for await (const line of createInterface({ input: process.stdin })) {
  const { do: what } = JSON.parse(line)
  const answer = what === 'listen' ? { result: await listen() } : { error: `what is ${what}?` }
  process.stdout.write(`${JSON.stringify(answer)}\n`)
}
process.exit(0)
