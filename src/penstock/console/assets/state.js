// State: the pipeline's memory explained, what it was before, and what a start would do with it now.

import { h } from './dom.js'
import { app, draw, load, place, post, toast } from './app.js'
import { count, moment, position } from './format.js'
import { card, empty, link, problem, table } from './parts.js'

const chosen = { raw: false, versions: 20 }
const revealed = {}

// Bounds of chunks and cursors are values of rows: hidden until somebody who may asks for them, which is written down.
async function reveal(of, fields, key) {
  try {
    revealed[of] = { key, value: await post('values', { of, fields }) }
  } catch (error) {
    toast(error.message, true)
  }
  draw()
}

const shownOf = (of, key) => (revealed[of]?.key === key ? revealed[of].value : null)

const hidden = (of, fields, key) => app.session.may_act && (shownOf(of, key)
  ? h('button', { class: 'quiet', onclick: () => { delete revealed[of]; draw() } }, 'Hide values')
  : h('button', { class: 'quiet', onclick: () => reveal(of, fields, key), title: 'That you asked is written to the audit log' }, 'Show values'))

export function state() {
  const found = load('state', 'state', {}, { every: 5000 })
  if (found.error) return card('State', null, problem(found.error))
  if (!found.value) return h('p', { class: 'boot' }, 'Reading…')
  const { document, facts, problems, restart, versions } = found.value
  if (!document) return card('State', null, empty('No state yet', 'The first sync or run makes it.'))
  const [version] = place().rest
  return [
    problems.length > 0 && h('div', { key: 'problems' }, problems.map((text) => problem(text))),
    card('If it were started now', { key: 'restart', class: 'restart' }, h('ol', null, restart.map((step, index) => h('li', { key: index }, h('b', null, step.what), h('span', null, step.text))))),
    card('What it says', { key: 'facts' },
      table([{ name: 'in the file' }, { name: 'now' }, { name: 'which means' }], facts.map((fact) => ({ key: fact.where, cells: [position(fact.where), h('b', null, fact.value), fact.meaning] }))),
      h('button', { class: 'quiet', 'aria-expanded': String(chosen.raw), onclick: () => { chosen.raw = !chosen.raw; draw() } }, chosen.raw ? 'Hide the file' : 'Show the file'),
      chosen.raw && hidden('state', {}, ''),
      chosen.raw && h('pre', { tabindex: '0' }, JSON.stringify(shownOf('state', '')?.document ?? document, null, 1))),
    card('What it was', { key: 'versions' },
      h('p', { class: 'about-text' }, 'Every version is kept for a while: the last fifty, and one per hour. ', h('code', null, 'penstock state restore'), ' brings one back.'),
      version ? difference(Number(version), versions) : null,
      table([{ name: 'version' }, { name: 'saved' }, { name: '' }],
        versions.slice(0, chosen.versions).map((each) => ({ key: String(each.version), class: String(each.version) === version && 'on', cells: [count(each.version), moment(each.saved_at), each.unreadable ? h('span', { class: 'bad' }, each.unreadable) : h('span', { class: 'actions' }, link(`state/${each.version}`, 'What changed'))] }))),
      versions.length > chosen.versions && h('button', { class: 'quiet more', onclick: () => { chosen.versions += 100; draw() } }, 'Show more')),
  ]
}

function difference(version, versions) {
  const index = versions.findIndex((each) => each.version === version)
  const before = versions[index + 1]
  if (index < 0 || !before) return h('p', { class: 'notice' }, 'There is no version before it to compare it with.')
  const found = load('difference', 'state/diff', { from: before.version, to: version })
  if (found.error) return problem(found.error)
  if (!found.value) return h('p', { class: 'quiet' }, 'Comparing…')
  const fields = { from: String(before.version), to: String(version) }
  const shown = shownOf('state.diff', version) ?? found.value
  return h('div', { class: 'notice', key: 'difference' },
    h('header', { class: 'about-head' }, h('h3', { class: 'grow' }, `From version ${count(before.version)} to ${count(version)}`), hidden('state.diff', fields, version), link('state', 'Close')),
    h('ul', { class: 'differences' }, shown.differences.filter((each) => each.path !== 'penstock.state_version').map((each, at) =>
      h('li', { key: at }, h('code', null, each.path), each.before !== null && h('del', null, each.before), each.after !== null && h('ins', null, each.after)))),
    shown.total > shown.differences.length && h('p', null, `and ${count(shown.total - shown.differences.length)} more`))
}
