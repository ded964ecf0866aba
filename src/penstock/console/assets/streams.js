// Streams: each with its state, how fresh it is and what can be done; a load with its progress.

import { h } from './dom.js'
import { act, app, draw, go, load, place } from './app.js'
import { bytes, count, moment, percent, position, rate, short, span } from './format.js'
import { bar, card, empty, link, problem, state, table } from './parts.js'
import { chart } from './chart.js'

const sorts = {
  stream: (each) => each.stream, state: (each) => each.state, rows: (each) => each.rows ?? -1, rate: (each) => each.rate ?? -1,
  freshness: (each) => each.freshness_s ?? -1, behind: (each) => each.lag_s ?? -1, letters: (each) => each.dead_letters,
}
const chosen = { text: '', state: '', sort: 'stream', down: false, shown: 100 }

export function streams(view) {
  const { rest } = place()
  if (rest[0]) return detail(view, rest[0])
  if (view.streams.length === 0) return card('Streams', null, empty('No stream yet', 'They appear when the first load is planned. ', h('code', null, 'penstock discover'), ' lists the tables there are.'))
  const found = view.streams.filter((each) => each.stream.includes(chosen.text.trim()) && (!chosen.state || each.state === chosen.state || (chosen.state === 'dead letters' && each.dead_letters)))
  const by = sorts[chosen.sort]
  found.sort((a, b) => (by(a) < by(b) ? -1 : by(a) > by(b) ? 1 : a.stream < b.stream ? -1 : 1) * (chosen.down ? -1 : 1))
  const states = { ...view.totals.states, ...(view.streams.some((each) => each.dead_letters) ? { 'dead letters': view.streams.filter((each) => each.dead_letters).length } : {}) }
  return [
    h('div', { class: 'filters', key: 'filters' },
      h('input', { type: 'search', placeholder: 'Filter by name  ( / )', 'aria-label': 'Filter by name', oninput: (event) => { chosen.text = event.target.value; draw() } }),
      h('div', { class: 'chips', role: 'group', 'aria-label': 'By state' },
        chip('', `all ${view.streams.length}`), Object.entries(states).map(([name, number]) => chip(name, `${name} ${number}`)))),
    found.length === 0
      ? empty('None like that', 'No stream matches the filter.')
      : table(columns(), found.slice(0, chosen.shown).map(row), { class: 'streams', key: 'table', label: 'Streams' }),
    found.length > chosen.shown && h('button', { class: 'quiet more', onclick: () => { chosen.shown += 200; draw() } }, `Show more of ${count(found.length)}`),
  ]
}

const chip = (name, text) =>
  h('button', { class: `chip ${chosen.state === name ? 'on' : ''}`, 'aria-pressed': String(chosen.state === name), key: name, onclick: () => { chosen.state = name; draw() } }, text)

function columns() {
  const column = (name, key, right) => ({
    name, right, sorted: chosen.sort === key ? (chosen.down ? 'descending' : 'ascending') : undefined,
    sort: key && (() => { if (chosen.sort === key) chosen.down = !chosen.down; else { chosen.sort = key; chosen.down = key !== 'stream' && key !== 'state' } draw() }),
  })
  return [column('stream', 'stream'), column('state', 'state'), column('rows', 'rows', true), column('changes', 'rate', true), column('freshness', 'freshness', true), column('behind', 'behind', true), column('dead letters', 'letters', true), { name: '' }]
}

function row(each) {
  return {
    key: each.stream,
    cells: [
      h('span', { class: 'name' }, link(`streams/${encodeURIComponent(each.stream)}`, each.stream), h('small', null, `${each.mode}${each.write ? `, ${each.write}` : ''}`)),
      [state(each.state), differs(each), progress(each), each.paused && h('small', { class: 'why' }, 'since ', moment(each.paused.since, { brief: true }), each.paused.reason && `: ${each.paused.reason}`), each.ordered.map((order) => h('small', { class: 'why' }, `${order} is ordered`))],
      [count(each.rows), each.known_at && h('small', { class: 'why' }, 'as seen ', moment(each.known_at, { brief: true }))], rate(each.rate), span(each.freshness_s), span(each.lag_s),
      each.dead_letters ? link(`letters/lake/${encodeURIComponent(each.stream)}`, count(each.dead_letters)) : '0',
      buttons(each),
    ],
  }
}

const differs = (each) => each.differences > 0 && h('span', { class: 'differs', title: 'Rows that are known to differ from the source' }, link('verify', `${count(each.differences)} differ`))

function progress(each) {
  const going = each.load
  if (!going) return null
  const text = going.eta_s !== null ? `${percent(going.part)}, about ${span(going.eta_s)} left` : going.part !== null ? percent(going.part) : 'planning'
  return h('span', { class: 'loading' }, bar(going.part, `load of ${each.stream}`), h('small', null, text))
}

export function buttons(each) {
  if (!app.session.may_act) return null
  const name = each.stream
  const stop = (event, ...given) => { event.stopPropagation(); act(...given) }
  return h('span', { class: 'actions' },
    each.state === 'paused'
      ? h('button', { class: 'small', onclick: (event) => stop(event, 'stream.resume', { stream: name }, { title: `Let ${name} go on?`, text: 'It reads on from where it stood, each change once, until it is level with the others.', button: 'Resume' }) }, 'Resume')
      : h('button', { class: 'small', onclick: (event) => stop(event, 'stream.pause', { stream: name }, { title: `Pause ${name}?`, text: 'It stands still where it is; the others go on. Its changes are captured and kept, here and at the source, until it is resumed: watch both disks.', button: 'Pause', ask: { name: 'reason', label: 'Why? (shown to everybody)', example: 'migration 42' } }) }, 'Pause'),
    h('button', { class: 'small', onclick: (event) => stop(event, 'stream.resync', { stream: name }, { title: `Load ${name} again?`, text: 'The whole table is read from the source. Readers see the old one until the new one is complete; of an append table the history is replaced.', button: 'Load again', danger: true }) }, 'Resync'))
}

const marks = {}

function detail(view, name) {
  const each = view.streams.find((one) => one.stream === name)
  if (!each) return card(name, null, empty('There is no such stream', 'It may have been taken out of the pipeline. ', link('streams', 'All streams')))
  const to = Math.floor(Date.now() / 10000) * 10
  const past = load('stream history', 'history', { series: `stream:${name}/applied_rate,stream:${name}/freshness_s,stream:${name}/lag_s`, from: to - 3600, to }, { keep: app.shownStream === name })
  app.shownStream = name
  const schemas = load('schemas', 'log/schemas', { stream: name })
  const lines = (keys) => keys.map(([key, title]) => ({ name: title, points: past.value?.series?.[`stream:${name}/${key}`] ?? [] }))
  return [
    h('p', { class: 'crumbs', key: 'crumbs' }, link('streams', 'Streams'), ' / ', h('b', null, name)),
    card(null, { key: 'about', class: 'about' },
      h('header', { class: 'about-head' }, h('h1', null, name), state(each.state), differs(each), buttons(each)),
      each.differences > 0 && h('p', { class: 'notice' }, `At least ${count(each.differences)} rows are known to differ from the source. `, link('verify', 'The comparisons'), ' say which; ', h('code', null, `penstock verify ${name} --repair`), ' writes them anew.'),
      each.paused && h('p', { class: 'notice' }, 'Paused since ', moment(each.paused.since), each.paused.reason && `: ${each.paused.reason}`, '. Its changes are kept until it is resumed.'),
      each.reload && h('p', { class: 'notice' }, `It is loaded again: ${each.reload}.`),
      each.rewind && h('p', { class: 'notice' }, 'Its changes after ', position(each.rewind), ' are to be applied to its table once more.'),
      each.load && h('div', { class: 'notice' }, progress(each), h('small', null, [each.load.rows !== null && `${count(each.load.rows)} of about ${count(each.load.rows_estimated)} rows`, each.load.rate && rate(each.load.rate, ' rows'), each.load.chunks && `${each.load.chunks - each.load.chunks_left} of ${each.load.chunks} chunks committed`].filter(Boolean).join(' · '))),
      h('dl', { class: 'facts' },
        pair('mode', `${each.mode}${each.write ? `, ${each.write}` : ''}`), pair('rows', [count(each.rows), each.known_at && [', as seen ', moment(each.known_at)]]), pair('files', count(each.files)),
        pair('changes', rate(each.rate)), pair('freshness', span(each.freshness_s)), pair('behind', span(each.lag_s)),
        pair('committed to', position(each.committed_to)), pair('changes in this run', count(each.rows_applied)),
        pair('dead letters', each.dead_letters ? link(`letters/lake/${encodeURIComponent(name)}`, count(each.dead_letters)) : '0'))),
    h('div', { class: 'two', key: 'charts' },
      card('Changes, last hour', null, chart({ label: 'Changes', series: lines([['applied_rate', 'changes']]), from: to - 3600, to, shown: (value) => rate(value), marked: marks.a, onmark: (at) => { marks.a = at; draw() } })),
      card('Freshness, last hour', null, chart({ label: 'Freshness', series: lines([['freshness_s', 'freshness'], ['lag_s', 'oldest not shown']]), from: to - 3600, to, shown: span, marked: marks.b, onmark: (at) => { marks.b = at; draw() } }))),
    card('Versions of its schema', { key: 'schemas' },
      schemas.value?.is_cut && h('p', { class: 'about-text' }, 'The log is longer than what is looked at: its newest 5,000 steps.'),
      schemas.error ? problem(schemas.error)
      : !schemas.value ? h('p', { class: 'quiet' }, 'Looking in the log…')
      : schemas.value.versions.length === 0 ? empty('None in the log', schemas.value.is_cut ? 'Those steps hold no change of this stream.' : 'The log holds no change of this stream; its schema is that of its load.')
      : table([{ name: 'since' }, { name: 'version' }, { name: 'columns', right: true }, { name: 'key' }, { name: 'what changed' }, { name: 'step', right: true }],
          schemas.value.versions.map((version, index) => ({ key: String(schemas.value.versions.length - index), cells: [moment(version.since), position(version.id), count(version.columns), version.key.join(', ') || 'none', version.changes.join('; ') || (schemas.value.is_cut ? 'the oldest of the steps that were looked at' : 'the first that the log has'), link(`log/${version.step}`, count(version.step))] })))),
  ]
}

const pair = (name, value) => h('div', { key: name }, h('dt', null, name), h('dd', null, value))
