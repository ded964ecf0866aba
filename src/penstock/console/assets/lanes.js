// Lanes: who is given every change, how far each is, and what people tell the stream lanes.

import { h } from './dom.js'
import { act, app, load } from './app.js'
import { bytes, count, laneRate, moment, position, span } from './format.js'
import { card, empty, laneState, link, problem, state } from './parts.js'

export function lanes(view) {
  const found = load('lanes', 'lanes', {}, { every: 5000 })
  const standing = new Map((found.value?.lanes ?? []).map((each) => [each.lane, each]))
  const known = new Set(view.lanes.map((each) => each.lane))
  const saved = [...standing.values()].filter((each) => !known.has(each.lane))
  const wrong = found.error ?? found.value?.problem
  if (view.lanes.length === 0 && saved.length === 0)
    return card('Lanes', null, wrong ? problem(wrong) : !found.value ? h('p', { class: 'quiet' }, 'Reading…') : empty('No lane has joined yet', 'A lane is on the list from its first start on; the source keeps what any of them lacks.'))
  return [
    wrong && problem(wrong),
    h('div', { class: 'cards', key: 'cards' },
      view.lanes.map((lane) => one(lane, standing.get(lane.lane))),
      saved.map((lane) => one({ ...lane, kind: 'saved', known: lane.position !== '', paused: false, lag_seconds: null, rate: null, state: null }, lane))),
  ]
}

function one(lane, standing) {
  const [word, level] = laneState(lane)
  return card(null, { key: lane.lane, class: `lane-card ${level}`, id: `lane-${lane.lane}` },
    h('header', { class: 'about-head' }, h('h2', null, `${lane.lane} lane`), state(word, level), buttons(lane)),
    lane.paused && h('p', { class: 'notice' }, 'Paused', lane.paused_since && [' since ', moment(lane.paused_since)], lane.paused_reason && `: ${lane.paused_reason}`, '. Nothing of its changes is lost; the source keeps them.'),
    !lane.configured && h('p', { class: 'notice' }, 'It is not in the pipeline file, and the source keeps all that it lacks until it is given up.'),
    lane.rewind_to && h('p', { class: 'notice' }, 'It is to send everything after ', position(lane.rewind_to), ' again.'),
    lane.resync && h('p', { class: 'notice' }, `It is to load ${lane.resync.join(', ') || 'all its streams'} again.`),
    lane.reason && !lane.paused && h('p', { class: 'reason' }, lane.reason),
    h('dl', { class: 'facts' },
      pair('holds up to', position(standing?.position)), pair('behind', lane.known ? bytes(lane.lag_bytes) : 'not known'), pair('for', span(lane.lag_seconds)),
      lane.rate !== null && pair('writes', laneRate(lane)),
      lane.kind === 'stream' && pair('events in this run', count(lane.events)), lane.kind === 'stream' && pair('freshness', span(lane.freshness_s)),
      lane.loading > 0 && pair('streams loading', count(lane.loading)), lane.gaps > 0 && pair('streams with a gap', count(lane.gaps)),
      lane.dead_letters > 0 && pair('dead letters', link('letters', count(lane.dead_letters))),
      lane.retries !== null && lane.retries !== undefined && pair('retries in this run', count(lane.retries)),
      lane.restarts !== null && lane.restarts !== undefined && pair('restarts', count(lane.restarts)), lane.memory_bytes && pair('memory', bytes(lane.memory_bytes)),
      lane.since && pair('in this state since', moment(lane.since)), standing?.since && pair('joined', moment(standing.since))))
}

function buttons(lane) {
  if (!app.session.may_act) return null
  const name = lane.lane
  if (!lane.configured) return h('span', { class: 'actions' }, h('button', { class: 'small', onclick: () => act('lane.drop', { lane: name }, { title: `Give the ${name} lane up?`, text: 'The source may forget changes that it does not hold; when it comes back it begins anew.', button: 'Give up', danger: true }) }, 'Drop'))
  if (lane.kind !== 'stream') return null
  return h('span', { class: 'actions' },
    lane.paused
      ? h('button', { class: 'small', onclick: () => act('lane.resume', { lane: name }, { title: `Let the ${name} lane go on?`, text: 'It goes on from what its target holds.', button: 'Resume' }) }, 'Resume')
      : h('button', { class: 'small', onclick: () => act('lane.pause', { lane: name }, { title: `Pause the ${name} lane?`, text: 'It stands still; other lanes go on. The source and the change log keep all that it lacks until it is resumed: watch both disks.', button: 'Pause', ask: { name: 'reason', label: 'Why? (shown to everybody)', example: 'broker upgrade' } }) }, 'Pause'),
    h('button', { class: 'small', onclick: () => act('lane.rewind', { lane: name }, { title: `Have the ${name} lane send again?`, text: 'Everything after a position of the source’s log is sent again, by the same offsets; what the target has from there on is there twice then.', button: 'Send again', danger: true, ask: { name: 'to', label: 'After which position?', example: '0/1A2B3C4D', needed: true } }) }, 'Rewind'))
}

const pair = (name, value) => h('div', { key: name }, h('dt', null, name), h('dd', null, value))
