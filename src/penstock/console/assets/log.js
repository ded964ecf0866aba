// Log: the steps there are, what the transactions of one did, and one row over time.

import { h } from './dom.js'
import { app, draw, go, load, place, post, toast } from './app.js'
import { bytes, count, moment, position } from './format.js'
import { card, empty, link, problem, streamLink, table } from './parts.js'

const chosen = { before: 0, stream: '', key: '', found: null, busy: false }

export function log(view) {
  const [step] = place().rest
  if (step) return oneStep(step)
  const found = load('steps', 'log/steps', chosen.before ? { before: chosen.before } : {}, { every: chosen.before ? 0 : 3000 })
  return [
    card('One row over time', { key: 'key' }, keySearch(view)),
    card('Steps', { key: 'steps' },
      found.error ? problem(found.error) : !found.value ? h('p', { class: 'quiet' }, 'Reading…') : found.value.steps.length === 0 ? empty('The log is empty', 'A step is sealed when capture has read something, or some seconds have passed.')
      : [
          h('p', { class: 'about-text' }, `${count(found.value.total)} steps; the log begins at `, position(found.value.begins), '. A step is whole transactions, sealed once, never changed.'),
          table([{ name: 'step' }, { name: 'sealed' }, { name: 'up to' }, { name: 'transactions', right: true }, { name: 'changes', right: true }, { name: 'what' }, { name: 'size', right: true }],
            found.value.steps.map((each) => ({ key: String(each.step), cells: [link(`log/${each.step}`, count(each.step)), moment(each.sealed_at), position(each.to), count(each.transactions), count(each.rows), operations(each.operations), bytes(each.bytes)] }))),
          h('div', { class: 'buttons' },
            chosen.before > 0 && h('button', { class: 'quiet', onclick: () => { chosen.before = 0; draw() } }, 'Newest'),
            found.value.more && h('button', { class: 'quiet', onclick: () => { chosen.before = found.value.steps.at(-1).step; draw() } }, 'Older')),
        ]),
  ]
}

const operations = (counts) => h('span', { class: 'operations' }, Object.entries(counts).map(([name, number]) => h('span', { key: name, class: `op ${name}` }, `${count(number)} ${name}${number === 1 ? '' : 's'}`)))

function oneStep(step) {
  const found = load('step', 'log/step', { step })
  return [
    h('p', { class: 'crumbs', key: 'crumbs' }, link('log', 'Log'), ' / ', h('b', null, `step ${step}`)),
    found.error ? problem(found.error) : !found.value ? h('p', { class: 'boot' }, 'Reading…') : [
      card(`Step ${count(found.value.step)}`, { key: 'about' },
        h('dl', { class: 'facts' }, pair('after', position(found.value.from)), pair('up to', position(found.value.to)), pair('sealed', moment(found.value.sealed_at)), pair('transactions', count(found.value.transactions)), pair('changes', count(found.value.rows)), pair('size', bytes(found.value.bytes))),
        found.value.streams.length > 0 && table([{ name: 'stream' }, { name: 'changes', right: true }, { name: 'what' }, { name: 'size', right: true }],
          found.value.streams.map((each) => ({ key: each.stream, cells: [streamLink(each.stream), count(each.rows), operations(each.operations), bytes(each.bytes)] })))),
      card('Transactions', { key: 'transactions' },
        found.value.shown.length === 0 ? empty('None', 'Nothing happened to the streams of this pipeline up to there.')
        : table([{ name: 'commit' }, { name: 'committed' }, { name: 'transaction', right: true }, { name: 'what it did' }],
            found.value.shown.map((each) => ({ key: each.at, cells: [position(each.at), moment(each.committed), count(each.xid), each.did.map((did) => h('div', { key: `${did.stream} ${did.operation}` }, `${count(did.rows)} ${did.operation}${did.rows === 1 ? '' : 's'} in `, streamLink(did.stream)))] }))),
        found.value.is_cut && h('p', { class: 'quiet' }, 'There are more; these are the newest.')),
    ],
  ]
}

function keySearch(view) {
  if (!app.session.may_act) return h('p', { class: 'about-text' }, 'Values of rows are shown to those who may act.')
  const search = async () => {
    const stream = (chosen.stream || view.streams[0]?.stream) ?? ''
    chosen.busy = true
    draw()
    try {
      chosen.found = await post('values', { of: 'log.key', fields: { stream, key: chosen.key } })
    } catch (error) {
      chosen.found = null
      toast(error.message, true)
    }
    chosen.busy = false
    draw()
  }
  const found = chosen.found
  return [
    h('div', { class: 'filters' },
      h('select', { 'aria-label': 'Stream', onchange: (event) => { chosen.stream = event.target.value } }, view.streams.map((each) => h('option', { key: each.stream, value: each.stream, selected: each.stream === chosen.stream }, each.stream))),
      h('input', { type: 'text', name: 'key', placeholder: 'Key, for instance 42', 'aria-label': 'Key', autocomplete: 'off', oninput: (event) => { chosen.key = event.target.value; draw() }, onkeydown: (event) => { if (event.key === 'Enter' && chosen.key) search() } }),
      h('button', { class: 'primary', disabled: !chosen.key || chosen.busy, onclick: search }, chosen.busy ? 'Searching…' : 'Show its changes'),
      h('small', { class: 'quiet' }, 'Shows values; that you asked is written to the audit log.')),
    found && (found.shown.length === 0 ? empty('No change of it', `None in the ${count(found.files_read)} files of the log that were read.`)
      : h('ol', { class: 'changes' }, found.shown.map((each) =>
          h('li', { key: `${each.tx} ${each.op_index}`, class: each.operation },
            h('header', null, h('span', { class: `op ${each.operation}` }, each.operation), moment(each.committed), position(each.at), link(`log/${each.step}`, `step ${each.step}`)),
            h('dl', { class: 'row' }, Object.entries(each.values).map(([name, value]) => [h('dt', { class: each.changed.includes(name) && 'changed' }, name), h('dd', { class: each.changed.includes(name) && 'changed' }, value === null ? h('em', null, 'NULL') : value)])))))),
    found?.is_cut && h('p', { class: 'quiet' }, 'The log may have older ones.'),
  ]
}

const pair = (name, value) => h('div', { key: name }, h('dt', null, name), h('dd', null, value))
