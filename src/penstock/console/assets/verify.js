// Verify: what comparisons came to, of tables and shapes with their source and of lanes with the log. Which rows differ is hidden until somebody asks, and the
// asking is written down.

import { h } from './dom.js'
import { app, draw, load, place, post, toast } from './app.js'
import { count, moment, percent, position, span } from './format.js'
import { card, empty, link, problem, state, streamLink, table } from './parts.js'

const LEVELS = { equal: 'good', different: 'bad', 'not compared': 'idle' }
const revealed = {}

export function verify() {
  const [run] = place().rest
  return run ? ofRun(run) : all()
}

function all() {
  const found = load('verify', 'verify', {}, { every: 10000 })
  if (found.error) return card('Verify', null, problem(found.error))
  if (!found.value) return card('Verify', null, h('p', { class: 'quiet' }, 'Reading…'))
  const { runs, streams } = found.value
  if (runs.length === 0)
    return card('Verify', null, empty('Nothing was compared yet', h('code', null, 'penstock verify'), ' compares tables with their source while both are in use, ', h('code', null, 'penstock verify --lane kafka'), ' what a lane has sent with the change log, ', h('code', null, 'penstock verify --lane shapes'), ' what live shapes hold with their source; ', h('code', null, 'verify: {every: 24h, sample: 5%}'), ' in the pipeline file has it done again and again.'))
  const differing = streams.filter((each) => each.verdict === 'different').length
  return [
    card('What is known', { key: 'known' },
      h('p', { class: 'about-text' }, differing ? `${count(differing)} of ${count(streams.length)} streams differed when they were last compared.` : 'No stream differed when it was last compared.'),
      table([{ name: 'stream' }, { name: 'verdict' }, ...COUNTS, { name: 'columns' }, { name: 'compared' }],
        streams.map((each) => ({ key: each.name, cells: [named(each), verdict(each), ...counts(each), columns(each), link(`verify/${encodeURIComponent(each.run)}`, moment(each.at))] })))),
    card('Runs', { key: 'runs' },
      table([{ name: 'begun' }, { name: 'took', right: true }, { name: 'part', right: true }, { name: 'rows', right: true }, { name: 'equal', right: true }, { name: 'different', right: true }, { name: 'not compared', right: true }],
        runs.map((each) => ({ key: each.run, cells: [link(`verify/${encodeURIComponent(each.run)}`, moment(each.at)), span(each.seconds), percent(each.sample), count(each.rows), count(each.equal), each.different ? state(count(each.different), 'bad') : count(0), count(each['not compared'])] })))),
  ]
}

function ofRun(run) {
  const found = load('verify run', 'verify/run', { run })
  return [
    h('p', { class: 'crumbs', key: 'crumbs' }, link('verify', 'Verify'), ' / ', h('b', null, run)),
    found.error ? problem(found.error) : !found.value ? h('p', { class: 'quiet', key: 'reading' }, 'Reading…')
    : card(null, { key: 'run' },
        h('header', { class: 'about-head' }, h('h2', null, moment(found.value.at)), h('span', { class: 'grow' }, `${percent(found.value.sample)} of the rows, in ${span(found.value.seconds)}`)),
        table([{ name: 'stream' }, { name: 'verdict' }, { name: 'position' }, { name: 'rows', right: true }, ...COUNTS, { name: 'columns' }, { name: '' }],
          found.value.shown.map((each) => ({ key: each.stream, cells: [named(each), verdict(each), position(each.position), count(each.source_rows), ...counts(each), columns(each), each.verdict === 'different' && hidden(run, each.stream)] })))),
    ...Object.entries(revealed).filter(([key]) => key.startsWith(`${run} `)).map(([key, told]) => ofRows(key, told)),
  ]
}

const ofRows = (key, told) => card(told.stream, { key: `rows ${key}` },
  h('p', { class: 'about-text' }, `As they were when they were compared${told.left_out ? `; ${count(told.left_out)} more differ` : ''}. `, ...(isShape(told) ? ['Values are shown by ', h('code', null, 'penstock verify --lane shapes --show-values'), '; a shape that differs is made anew when it is dropped.'] : told.lane ? ['A change is named as records name it, by its offset; a record by topic, partition and offset.']
    : ['Values are shown by ', h('code', null, `penstock verify ${told.stream} --show-values`), '; ', h('code', null, '--repair'), ' puts them right.'])),
  table([{ name: 'row' }, { name: 'key' }, { name: 'columns' }],
    told.shown.map((each, index) => ({ key: String(index), cells: [each.kind, h('code', null, Object.entries(each.key).map(([name, value]) => `${name}=${value ?? 'NULL'}`).join(', ')), each.columns.join(', ')] }))))

const COUNTS = ['missing', 'extra', 'different', 'dead letters'].map((name) => ({ name, right: true }))
const isShape = (each) => each.lane === 'shapes'
const named = (each) => (isShape(each) ? [link('shapes', each.stream), h('small', null, 'a shape, as its clients hold it')] : [streamLink(each.stream), each.lane && h('small', null, `as the lane ${each.lane} has sent it`)])

const counts = (each) => [count(each.missing), [count(each.extra), each.doubled > 0 && h('small', null, `${count(each.doubled)} doubled`), each.out_of_order > 0 && h('small', null, `${count(each.out_of_order)} out of order`)], [count(each.different), each.more > 0 && h('small', null, `and ${count(each.more)} or more`)], count(each.dead_letters)]

const verdict = (each) => [state(each.verdict, LEVELS[each.verdict]), ...each.notes.map((note, index) => h('small', { key: `note ${index}` }, note)), (each.reason || each.since) && h('small', null, each.since ? `since then: ${each.since}` : each.reason), each.repaired > 0 && h('small', null, `${count(each.repaired)} rows were put right`)]

const columns = (each) => [Object.keys(each.columns).join(', '), each.columns_not_compared.length > 0 && h('small', null, `without ${each.columns_not_compared.join(', ')}`)]

async function reveal(key, run, stream) {
  try {
    revealed[key] = await post('values', { of: 'verify.rows', fields: { run, stream } })
  } catch (error) {
    toast(error.message, true)
  }
  draw()
}

const hidden = (run, stream) => {
  const key = `${run} ${stream}`
  return app.session.may_act && h('span', { class: 'actions' }, revealed[key]
    ? h('button', { class: 'small', onclick: () => { delete revealed[key]; draw() } }, 'Hide rows')
    : h('button', { class: 'small', onclick: () => reveal(key, run, stream), title: 'That you asked is written to the audit log' }, 'Show rows'))
}
