// Elements from values: `h` describes one, `patch` makes the page so. What is there already stays, with its focus,
// its selection and what was typed; nothing is ever made of text that could be markup.

const SVG = 'http://www.w3.org/2000/svg'

export function h(tag, attributes, ...children) {
  return { tag, attributes: attributes ?? {}, children: children.flat(Infinity).filter(isShown) }
}

const isShown = (child) => child !== null && child !== undefined && child !== false && child !== ''

export function patch(parent, children, svg = false) {
  const kept = new Map()
  for (const node of parent.childNodes) if (node.described?.attributes?.key) kept.set(node.described.attributes.key, node)
  let at = parent.firstChild
  for (const child of [children].flat(Infinity).filter(isShown)) {
    const wanted = typeof child === 'object' ? child : String(child)
    const key = wanted.attributes?.key
    let node = key === undefined ? at : (kept.get(key) ?? null)
    if (node && !fits(node, wanted)) node = null
    if (node && key === undefined && node.described?.attributes?.key !== undefined) node = null
    if (node === null || node === undefined) {
      node = make(wanted, svg)
      parent.insertBefore(node, at)
    } else {
      if (node !== at) parent.insertBefore(node, at)
      else at = at.nextSibling
      update(node, wanted, svg)
    }
  }
  while (at) {
    const next = at.nextSibling
    at.remove()
    at = next
  }
}

const fits = (node, wanted) =>
  typeof wanted === 'string' ? node.nodeType === 3 : node.nodeType === 1 && node.described?.tag === wanted.tag

function make(wanted, svg) {
  if (typeof wanted === 'string') return document.createTextNode(wanted)
  const inside = svg || wanted.tag === 'svg'
  const node = inside ? document.createElementNS(SVG, wanted.tag) : document.createElement(wanted.tag)
  node.heard = {}
  update(node, wanted, inside)
  wanted.attributes.made?.(node)
  return node
}

function update(node, wanted, svg) {
  if (typeof wanted === 'string') {
    if (node.data !== wanted) node.data = wanted
    return
  }
  const before = node.described?.attributes ?? {}
  for (const name in before) if (!(name in wanted.attributes)) set(node, name, null, before[name])
  for (const name in wanted.attributes) set(node, name, wanted.attributes[name], before[name])
  node.described = wanted
  if (!wanted.attributes.own) patch(node, wanted.children, svg || wanted.tag === 'svg')
}

function set(node, name, value, before) {
  if (name === 'key' || name === 'made' || name === 'own') return
  if (name.startsWith('on')) {
    const kind = name.slice(2)
    if (!(kind in node.heard)) node.addEventListener(kind, (event) => node.heard[kind]?.(event))
    node.heard[kind] = value
    return
  }
  if (value === before) return
  if (name === 'value' || name === 'checked') node[name] = value ?? ''
  else if (value === null || value === undefined || value === false) node.removeAttribute(name)
  else node.setAttribute(name, value === true ? '' : value)
}
