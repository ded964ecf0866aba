// Flow: everything on one drawing, and what holds the slot in words.

import { h } from './dom.js'
import { app, load } from './app.js'
import { bytes, clock, count, laneRate, moment, position, rate, short, span } from './format.js'
import { card, empty, laneState, levelOf, link, state, streamLink } from './parts.js'
import { spark } from './chart.js'

export function flow(view) {
  return [
    holds(view),
    view.instance?.reasons?.length > 0 && h('ul', { class: 'reasons', key: 'reasons' }, view.instance.reasons.map((each) => h('li', { key: each }, String(each).split('\n')[0]))),
    tiles(view),
    card('From the source to every destination', { class: 'drawing', key: 'drawing' }, drawing(view)),
    h('div', { class: 'two', key: 'below' }, streamMap(view), processes(view)),
  ]
}

// What is said aloud has no "12 s ago" in it: it is said again when it becomes another sentence, not every second.
function holds(view) {
  const marks = { good: '✓', busy: '…', bad: '!' }
  return [h('p', { class: 'unseen', role: 'status', key: 'holds said' }, view.holds.pieces.map((piece) => (piece.time ? clock(piece.time) : piece.stream ?? piece.lane ?? piece.text)).join('')), h('p', { class: `holds ${view.holds.level}`, key: 'holds' },
    h('i', { 'aria-hidden': 'true' }, h('b', null, marks[view.holds.level])),
    h('span', null, view.holds.pieces.map((piece) =>
      piece.stream ? streamLink(piece.stream) : piece.lane ? link('lanes', piece.lane) : piece.time ? moment(piece.time) : piece.text)))]
}

// Other sources keep their log for as long as their own settings say, and nothing of it for us.
const hasSlot = (view) => view.source.type === 'postgres'

const seconds = () => Math.floor(Date.now() / 1000)

function tiles(view) {
  const past = load('flow history', 'history', { series: 'captured_rows_rate,applied_rate,freshness_p99,retained_wal_bytes', from: (app.openedAt ??= seconds()) - 1800, to: app.openedAt })
  const series = (name, pick) => [
    ...(past.value?.series?.[name] ?? []).map(([, value]) => value),
    ...app.recent.filter((_, index) => index % 10 === 0).map(pick),
  ]
  return h('div', { class: 'tiles', key: 'tiles' },
    tile('Captured', rate(view.capture.rows_rate, ' rows'), `${bytes(view.capture.bytes_rate)}/s`, series('captured_rows_rate', (each) => each.capture.rows_rate), 'good'),
    tile('Applied to tables', rate(view.totals.applied_rate, ' rows'), [`${count(view.totals.rows)} rows in ${count(view.totals.streams)} tables`, view.totals.known_at && [', as seen ', moment(view.totals.known_at, { brief: true })]], series('applied_rate', (each) => each.totals.applied_rate), 'good'),
    tile('Freshness p99', span(view.totals.freshness_p99), `p50 ${span(view.totals.freshness_p50)} · commit to table`, series('freshness_p99', (each) => each.totals.freshness_p99), 'accent'),
    hasSlot(view) && tile('Kept by the source', bytes(view.source.retained_wal_bytes), view.source.safe_wal_bytes !== null && view.source.safe_wal_bytes !== undefined ? `${bytes(view.source.safe_wal_bytes)} until the slot is lost` : 'log that the slot holds', series('retained_wal_bytes', (each) => each.source.retained_wal_bytes), view.source.wal_pressure ? 'bad' : 'accent'),
    tile('Dead letters', count(view.totals.dead_letters), view.totals.dead_letters ? link('letters', 'Look at them') : view.totals.dead_letters === 0 ? 'none' : 'not known while nothing says it', [], view.totals.dead_letters ? 'bad' : view.totals.dead_letters === 0 ? 'good' : 'idle'),
    view.totals.differences > 0 && tile('Known differences', count(view.totals.differences), link('verify', 'Rows that are not as at the source'), [], 'bad'))
}

const tile = (name, value, more, series, level) =>
  h('section', { class: `tile ${level}`, key: name }, h('h3', null, name), h('strong', null, value), h('small', null, more), spark(series))

function drawing(view) {
  if (!view.instance) return [
    empty('No instance is running', 'Start it with ', h('code', null, 'penstock run'), '. What the state says of the streams is on the other screens.'),
  ]
  const capture = view.processes.find((each) => each.name === 'capture')
  const lanes = view.lanes
  const read = capture?.state === 'leading' ? view.capture.rows_rate : 0
  return h('div', { class: 'flow' },
    node('source', view.source.type === 'postgres' ? 'Postgres' : view.source.type, sourceLevel(view), [
      fact(hasSlot(view) ? 'slot' : 'read as', view.source.slot),
      fact('acknowledged', position(view.source.acknowledged)),
      hasSlot(view) && fact('keeps for us', bytes(view.source.retained_wal_bytes)),
    ], capture?.state === 'reconnecting' ? 'cannot be reached' : view.source.slot_healthy === false ? (hasSlot(view) ? 'slot lost' : 'log lost') : view.source.wal_pressure ? 'under pressure' : 'healthy'),
    pipe(1, [read], 'one', 'in'),
    node('capture', 'Capture', levelOf(capture?.state), [
      fact('reads', rate(view.capture.rows_rate, ' rows')),
      fact('', `${rate(view.capture.transactions_rate, ' tx')}`),
      fact('behind', view.source.capture_lag_s == null ? bytes(view.source.capture_lag_bytes) : span(view.source.capture_lag_s)),
    ], capture?.state ?? 'absent', capture?.reason),
    pipe(1, [read], 'one', 'on'),
    node('log', 'Change log', 'good', [
      fact('holds', bytes(view.capture.log_bytes)),
      fact('not sealed', bytes(view.capture.unsealed_bytes)),
      fact('tables at', position(view.position)),
    ], 'durable'),
    pipe(lanes.length, lanes.map(flowing), 'fan', 'out'),
    h('div', { class: 'lanes' }, lanes.map((lane) => laneRow(lane, view))))
}

function laneRow(lane, view) {
  const [word, level] = laneState(lane)
  const target = lane.kind === 'lake' ? view.destination.name : lane.kind === 'shapes' ? 'HTTP clients' : lane.target
  return h('div', { class: 'lane', key: lane.lane },
    node(`lane-${lane.lane}`, link('lanes', `${lane.lane} lane`), level, [
      fact('behind', lane.known ? `${bytes(lane.lag_bytes)} · ${span(lane.lag_seconds)}` : 'not known yet'),
      lane.rate !== null && fact('writes', laneRate(lane)),
      lane.dead_letters > 0 && fact('dead letters', link('letters', count(lane.dead_letters))),
      lane.gaps > 0 && fact('with a gap', count(lane.gaps)),
    ], word, lane.paused ? lane.paused_reason : lane.reason),
    pipe(1, [flowing(lane)], 'one', 'to'),
    node(`to-${lane.lane}`, target, level === 'good' ? 'good' : 'idle', [
      lane.kind === 'lake' ? fact('fresh to', span(view.totals.freshness_p50)) : lane.freshness_s !== null && fact('fresh to', span(lane.freshness_s)),
      lane.kind === 'lake' && fact('holds', `${short(view.totals.rows)} rows`),
    ]))
}

const flowing = (lane) => (lane.paused || lane.state !== 'running' ? 0 : lane.rate)

const sourceLevel = (view) => {
  const capture = view.processes.find((each) => each.name === 'capture')
  return capture?.state === 'reconnecting' || view.source.slot_healthy === false ? 'bad' : view.source.wal_pressure ? 'busy' : view.source.slot_healthy ? 'good' : 'idle'
}

const fact = (name, value) => [h('dt', null, name), h('dd', null, value)]

const node = (id, title, level, facts, word, reason) =>
  h('article', { class: `node ${level}`, key: id, id: `node-${id}` },
    h('header', null, h('h3', null, title), word && state(word, level)),
    h('dl', null, facts),
    reason && level !== 'good' && h('p', { class: 'reason' }, String(reason).split('\n')[0]))

// Lines that move while something flows, as fast as it does; a line to each of `ways`.
function pipe(ways, rates, kind, name) {
  const height = Math.max(1, ways) * 100
  const middle = height / 2
  return h('svg', { class: `pipe ${kind}`, viewBox: `0 0 100 ${height}`, preserveAspectRatio: 'none', 'aria-hidden': 'true', key: `pipe ${name}` },
    Array.from({ length: ways }, (_, index) => {
      const y = index * 100 + 50
      const d = kind === 'fan' && ways > 1 ? `M0 ${middle} C 55 ${middle}, 45 ${y}, 100 ${y}` : `M0 ${middle} H100`
      const speed = rates[index] > 5000 ? 'fast' : rates[index] > 100 ? 'quick' : rates[index] > 0 ? 'slow' : 'still'
      return [h('path', { class: 'bed', d }), h('path', { class: `water ${speed}`, d })]
    }))
}

function streamMap(view) {
  const states = Object.entries(view.totals.states)
  return card('Streams', { class: 'map', key: 'map' },
    view.streams.length === 0
      ? empty('No stream yet', 'They appear when the first load is planned.')
      : [
          h('p', { class: 'legend' }, states.map(([name, number]) => h('span', { key: name }, state(name), ` ${number}`))),
          h('div', { class: 'squares' }, view.streams.map((each) =>
            h('a', { key: each.stream, class: `square ${levelOf(each.state)} ${each.dead_letters || each.differences ? 'dead' : ''}`, href: `#/streams/${encodeURIComponent(each.stream)}`, title: `${each.stream}: ${each.state}${each.freshness_s !== null ? `, fresh to ${span(each.freshness_s)}` : ''}${each.dead_letters ? `, ${each.dead_letters} dead letters` : ''}${each.differences ? `, ${each.differences} known differences` : ''}`, 'aria-label': `${each.stream}: ${each.state}${each.differences ? ', known differences' : ''}` }))),
        ])
}

function processes(view) {
  return card('Processes', { key: 'processes' },
    view.processes.length === 0
      ? empty('None', 'Nothing runs.')
      : h('ul', { class: 'processes' }, view.processes.map((each) =>
          h('li', { key: each.name },
            h('b', null, each.name), state(each.state), h('span', { class: 'grow' }, h('small', null, 'since '), moment(each.since, { brief: true })),
            h('span', { class: 'number' }, bytes(each.memory_bytes || null)),
            h('span', { class: 'number' }, each.restarts ? `${each.restarts} restart${each.restarts === 1 ? '' : 's'}` : ''),
            each.reason && each.state !== 'running' && h('p', { class: 'reason' }, each.reason)))))
}
