// Dead letters: what a table could not hold or a target would not take. Values are hidden until somebody asks for them,
// and the asking is written down.

import { h } from './dom.js'
import { act, app, draw, go, load, place, post, toast } from './app.js'
import { count, moment, position } from './format.js'
import { card, empty, link, problem, table } from './parts.js'

const revealed = {}
const PAGE = 100
const chosen = { stream: '', text: '', skip: 0, of: '' }

// What is asked for of a list: a text, and where its page begins; another list begins anew.
function wanted(of) {
  if (chosen.of !== of) Object.assign(chosen, { of, text: '', skip: 0 })
  return { ...(chosen.text.trim() ? { text: chosen.text.trim() } : {}), ...(chosen.skip ? { skip: String(chosen.skip) } : {}) }
}

const filter = (label) => h('div', { class: 'filters', key: 'filter' },
  h('input', { type: 'search', placeholder: `${label}  ( / )`, 'aria-label': label, maxlength: 200, value: chosen.text, onchange: (event) => { chosen.text = event.target.value; chosen.skip = 0; draw() } }))

const pages = (found) => (chosen.skip > 0 || found.value?.more) && h('div', { class: 'buttons', key: 'pages' },
  chosen.skip > 0 && h('button', { class: 'quiet', onclick: () => { chosen.skip = Math.max(0, chosen.skip - PAGE); draw() } }, 'Newer'),
  found.value?.more && h('button', { class: 'quiet', onclick: () => { chosen.skip += PAGE; draw() } }, 'Older'))

const nothing = () => (chosen.text.trim() || chosen.skip ? empty('None like that', 'No dead letter has that in its code or reason.') : empty('None', 'There are no dead letters of this stream.'))

export function letters(view) {
  const [lane, stream] = place().rest
  if (lane) return lane === 'lake' ? ofTable(stream) : ofLane(lane, stream)
  const found = load('letters', 'letters', {}, { every: 5000 })
  const allTables = view.streams.filter((each) => each.dead_letters)
  const allLanes = found.value?.lanes ?? []
  const text = chosen.stream.trim().toLowerCase()
  const has = (...words) => words.join(' ').toLowerCase().includes(text)
  const ofTables = allTables.filter((each) => has(each.stream, 'lake'))
  const ofLanes = allLanes.filter((each) => has(each.stream, each.lane, each.code))
  if (allTables.length === 0 && allLanes.length === 0)
    return card('Dead letters', null, found.error ? problem(found.error) : !found.value ? h('p', { class: 'quiet' }, 'Reading…') : !view.instance ? empty('None of the stream lanes', 'What tables could not hold is known while an instance runs.') : empty('None', 'Every row fits its table, and every event was taken.'))
  return [
    found.error && problem(found.error),
    h('div', { class: 'filters', key: 'filter' },
      h('input', { type: 'search', placeholder: 'Filter by stream, lane or code  ( / )', 'aria-label': 'Filter by stream, lane or code', value: chosen.stream, oninput: (event) => { chosen.stream = event.target.value; draw() } })),
    ofTables.length === 0 && ofLanes.length === 0 && empty('None like that', 'No dead letter matches the filter.'),
    ofTables.length > 0 && card('Rows that a table could not hold', { key: 'tables' },
      h('p', { class: 'about-text' }, 'They are absent from the table until a version of them comes that fits.'),
      table([{ name: 'stream' }, { name: 'dead letters', right: true }, { name: '' }],
        ofTables.map((each) => ({ key: each.stream, cells: [link(`letters/lake/${encodeURIComponent(each.stream)}`, each.stream), count(each.dead_letters), h('span', { class: 'actions' }, link(`letters/lake/${encodeURIComponent(each.stream)}`, 'Look'))] })))),
    ofLanes.length > 0 && card('Events that a target would not take', { key: 'lanes' },
      table([{ name: 'lane' }, { name: 'stream' }, { name: 'why' }, { name: 'letters', right: true }, { name: 'keys', right: true }, { name: 'since' }, { name: '' }],
        ofLanes.map((each) => ({ key: `${each.lane} ${each.stream} ${each.code}`, cells: [each.lane, link(`letters/${each.lane}/${encodeURIComponent(each.stream)}`, each.stream), position(each.code), count(each.dead_letters), count(each.dead_keys), moment(each.since), ask(each.lane, each.stream)] })))),
  ]
}

const ask = (lane, stream, letter) => app.session.may_act && h('span', { class: 'actions' },
  h('button', { class: 'small', onclick: () => act('letters.replay', { lane, ...(letter ? { letter } : { stream }) }, { title: letter ? `Send letter ${letter} again?` : `Send the dead letters of ${stream} again?`, text: 'They are sent key by key, in their order. What is refused again stays.', button: 'Send again' }) }, 'Replay'),
  h('button', { class: 'small', onclick: () => act('letters.drop', { lane, ...(letter ? { letter } : { stream }) }, { title: letter ? `Give letter ${letter} up?` : `Give the dead letters of ${stream} up?`, text: 'The target never gets these events.', button: 'Give up', danger: true }) }, 'Drop'))

// Letters by names: a lane numbers its own, a table's have their offset and which of those with it they are.
function named(shown) {
  const seen = new Map()
  return shown.map((each) => {
    const name = each.letter !== undefined ? String(each.letter) : `${each.offset} ${each.op} ${each['dead since']}`
    seen.set(name, (seen.get(name) ?? 0) + 1)
    return [`${name} ${seen.get(name)}`, each]
  })
}

// The list is always the newest one; values that were asked for are put beside the letters that are still there.
const withRevealed = (key, found) =>
  named(found.value?.shown ?? []).map(([name, each]) => {
    const asked = revealed[key]?.get(name)
    return asked ? { ...each, key: asked.key, value: asked.value, row: asked.row, name, isAsked: true } : { ...each, name }
  })

const NOT_ASKED = () => h('em', null, 'hidden')

async function reveal(key, of, fields) {
  try {
    const found = await post('values', { of, fields })
    revealed[key] = new Map(named(found.shown))
  } catch (error) {
    toast(error.message, true)
  }
  draw()
}

const hidden = (key, of, fields, shown) => app.session.may_act && h('span', { class: 'actions' },
  (!revealed[key] || shown.some((each) => !each.isAsked)) && h('button', { class: 'small', key: 'show', onclick: () => reveal(key, of, fields), title: 'That you asked is written to the audit log' }, 'Show values'),
  revealed[key] && h('button', { class: 'small', key: 'hide', onclick: () => { delete revealed[key]; draw() } }, 'Hide values'))

function ofTable(stream) {
  const key = `lake ${stream}`
  const keep = chosen.of === key
  const found = load('letters of table', 'letters/lake', { stream, ...wanted(key) }, { keep })
  const shown = withRevealed(key, found)
  const withValues = !!revealed[key]
  return [
    h('p', { class: 'crumbs', key: 'crumbs' }, link('letters', 'Dead letters'), ' / ', h('b', null, stream)),
    card(null, { key: 'letters' },
      h('header', { class: 'about-head' }, h('h2', null, stream), h('span', { class: 'grow' }, found.value && `${count(found.value.dead_letters)} dead letters, the newest first`), hidden(key, 'letters.lake', { stream, ...wanted(key) }, shown)),
      filter('Filter by code or reason'),
      found.value?.only_newest && (chosen.text.trim() || chosen.skip > 0) && h('p', { class: 'quiet' }, `Of the newest ${count(found.value.only_newest)}.`),
      found.error ? problem(found.error) : !found.value ? h('p', { class: 'quiet' }, 'Reading…') : shown.length === 0 ? nothing()
      : table([{ name: 'op' }, { name: 'offset' }, { name: 'committed' }, { name: 'dead since' }, { name: 'why' }, ...(withValues ? [{ name: 'key' }, { name: 'row' }] : [])],
          shown.map((each) => ({ key: each.name, cells: [each.op, h('code', { class: 'nowrap' }, each.offset), moment(each.committed), moment(each['dead since']), each.why, ...(withValues ? (each.isAsked ? [h('code', null, (each.key ?? []).join(', ')), values(each.row)] : [NOT_ASKED(), NOT_ASKED()]) : [])] }))),
      pages(found)),
  ]
}

function ofLane(lane, stream) {
  const key = `${lane} ${stream}`
  const keep = chosen.of === key
  const found = load('letters of lane', 'letters/lane', { lane, stream, ...wanted(key) }, { every: 5000, keep })
  const shown = withRevealed(key, found)
  const withValues = !!revealed[key]
  return [
    h('p', { class: 'crumbs', key: 'crumbs' }, link('letters', 'Dead letters'), ' / ', lane, ' / ', h('b', null, stream)),
    card(null, { key: 'letters' },
      h('header', { class: 'about-head' }, h('h2', null, stream), h('span', { class: 'grow' }, found.value && `${count(found.value.dead_letters)} dead letters of the ${lane} lane, the newest first`), hidden(key, 'letters.lane', { lane, stream, ...wanted(key) }, shown), shown.length > 0 && !chosen.text && ask(lane, stream)),
      filter('Filter by code or reason'),
      found.value?.only_newest && (chosen.text.trim() || chosen.skip > 0) && h('p', { class: 'quiet' }, `Of the newest ${count(found.value.only_newest)}.`),
      found.error ? problem(found.error) : !found.value ? h('p', { class: 'quiet' }, 'Reading…') : shown.length === 0 ? nothing()
      : table([{ name: 'letter' }, { name: 'op' }, { name: 'offset' }, { name: 'dead since' }, { name: 'code' }, { name: 'why' }, { name: 'tries', right: true }, ...(withValues ? [{ name: 'key' }, { name: 'value' }] : []), { name: '' }],
          shown.map((each) => ({ key: String(each.letter), cells: [count(each.letter), each.op, h('code', { class: 'nowrap' }, each.offset), moment(each['dead since']), position(each.code), each.why, count(each.attempts), ...(withValues ? (each.isAsked ? [h('code', null, each.key ?? 'NULL'), h('code', { class: 'long' }, each.value ?? 'NULL')] : [NOT_ASKED(), NOT_ASKED()]) : []), ask(lane, stream, String(each.letter))] }))),
      pages(found)),
  ]
}

const values = (row) => h('dl', { class: 'row' }, Object.entries(row ?? {}).map(([name, value]) => [h('dt', null, name), h('dd', null, value === null ? h('em', null, 'NULL') : value)]))
